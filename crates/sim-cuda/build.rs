//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The loader then takes it for the real one wherever that is asked for by name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Streams are threads that run this code: unloading it would take it away below them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
