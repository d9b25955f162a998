//! `pipes [N]`: N pipes open at once (default 10,000), each with bytes of its own in it.

use user::sys;

fn main() {
    let wanted = std::env::args()
        .nth(1)
        .and_then(|text| text.parse::<usize>().ok())
        .unwrap_or(10_000);
    let descriptors = wanted as u64 * 2 + 16;
    let limit = [descriptors, descriptors];
    let _ = sys::call(
        libc::SYS_prlimit64,
        &[0, u64::from(libc::RLIMIT_NOFILE), limit.as_ptr() as u64, 0],
    );
    let pipes: Vec<(i32, i32)> = (0..wanted).map_while(|_| sys::pipe(0).ok()).collect();
    if pipes.len() < wanted {
        println!("only {} pipes could be made", pipes.len());
        sys::exit(1);
    }
    let written = pipes
        .iter()
        .enumerate()
        .all(|(i, &(_, to))| sys::write(to, &i.to_ne_bytes()) == Ok(8));
    let read = pipes.iter().enumerate().all(|(i, &(from, _))| {
        let mut bytes = [0; 8];
        sys::read(from, &mut bytes) == Ok(8) && usize::from_ne_bytes(bytes) == i
    });
    println!(
        "{wanted} pipes {}",
        if written && read { "right" } else { "WRONG" }
    );
    sys::exit(i32::from(!(written && read)))
}
