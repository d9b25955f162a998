//! Build, run and test Pantala.
fn main() {}
