//! The command `cuf`.
fn main() {}
