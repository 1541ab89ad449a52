//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The loader then takes it for the real one wherever that is asked for by name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcufile.so.0");
    // Streams run its code, and the end of the process calls it: it stays, as the real one does.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
