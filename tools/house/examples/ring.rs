//! Lists the imports among the files of a crate's largest ring: `cargo run -p house --example ring kernel/hal`.

use house::{Tree, rings};

fn main() -> std::io::Result<()> {
    let tree = Tree::here()?;
    for dir in std::env::args().skip(1) {
        let (files, arrows) = rings::largest(&tree, dir.trim_end_matches('/'));
        for (from, line, to) in arrows {
            println!("{from}:{line} -> {to}");
        }
        println!("{dir}: {} files in the largest ring", files.len());
    }
    Ok(())
}
