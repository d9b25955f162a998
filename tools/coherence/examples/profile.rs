//! Prints where a benchmark's kernel instructions are spent, by function.
//!
//! `cargo run -p coherence --example profile -- RECORDS KERNEL [CASE OPERATIONS]`, where RECORDS is the plugin's output
//! with `mode=profile` and KERNEL the kernel that ran. With a case, counts are per operation. Inlined code counts for
//! the function that it was inlined into.

use coherence::record::Record;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;

/// Functions shown for each phase.
const TOP: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(records), Some(kernel)) = (args.first(), args.get(1)) else {
        return Err("usage: profile RECORDS KERNEL [CASE OPERATIONS]".into());
    };
    let wanted: Option<u16> = args.get(2).map(|case| case.parse()).transpose()?;
    let operations: f64 = args.get(3).map_or(Ok(1.0), |n| n.parse())?;
    let functions = functions(kernel)?;
    let mut sums: BTreeMap<(u16, u8), BTreeMap<&str, u64>> = BTreeMap::new();
    for line in std::fs::read_to_string(records)?.lines() {
        if let Record::Block {
            case,
            phase,
            addr,
            insns,
            times,
            ..
        } = Record::from_line(line)?
            && wanted.is_none_or(|wanted| wanted == case)
        {
            let sum = sums.entry((case, phase)).or_default();
            *sum.entry(name(&functions, addr)).or_default() += u64::from(insns) * times;
        }
    }
    for ((case, phase), sum) in sums {
        let total: u64 = sum.values().sum();
        println!(
            "case {case}, phase {phase}: {:.1}",
            total as f64 / operations
        );
        let mut sum: Vec<_> = sum.into_iter().collect();
        sum.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        for (name, count) in sum.into_iter().take(TOP) {
            println!("{:12.1}  {name}", count as f64 / operations);
        }
    }
    Ok(())
}

/// The functions of an ELF file, by address.
fn functions(kernel: &str) -> Result<Vec<(u64, String)>, Box<dyn Error>> {
    let output = Command::new("nm").args(["-C", "-n", kernel]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let function = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let addr = u64::from_str_radix(words.next()?, 16).ok()?;
        let code = matches!(words.next()?, "t" | "T");
        code.then_some((addr, words.next()?.to_owned()))
    };
    Ok(text.lines().filter_map(function).collect())
}

/// The function that contains `addr`.
fn name(functions: &[(u64, String)], addr: u64) -> &str {
    match functions.partition_point(|(start, _)| *start <= addr) {
        0 => "?",
        after => &functions[after - 1].1,
    }
}
