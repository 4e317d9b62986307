//! The command line of stepwell.

fn main() {}
