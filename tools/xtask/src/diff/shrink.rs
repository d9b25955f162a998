//! Makes a program that differs shorter, by leaving out steps that the difference does not need.

use anyhow::Result;

/// The steps of `steps` without which `differs` no longer holds: halves, then quarters and so on are left out as long as the
/// rest still differs. `more` says whether there is time for another attempt.
///
/// # Errors
/// Those of `differs`.
pub fn shrink(
    mut steps: Vec<u32>,
    mut differs: impl FnMut(&[u32]) -> Result<bool>,
    mut more: impl FnMut() -> bool,
) -> Result<Vec<u32>> {
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let mut end = steps.len();
        let mut shorter = false;
        while end > 0 {
            if !more() {
                return Ok(steps);
            }
            let from = end.saturating_sub(part);
            let rest = [&steps[..from], &steps[end..]].concat();
            if differs(&rest)? {
                steps = rest;
                shorter = true;
            }
            end = from;
        }
        // Once nothing more can go one by one, nothing can go at all.
        part = if part == 1 && shorter { 1 } else { part / 2 };
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needed_steps_are_left() {
        let needs = |steps: &[u32]| Ok([3, 50, 51].iter().all(|step| steps.contains(step)));
        let left = shrink((1..=100).collect(), needs, || true).unwrap();
        assert_eq!(left, [3, 50, 51]);
    }

    #[test]
    fn attempts_end_in_time() {
        let mut left = 3;
        let more = || {
            left -= 1;
            left >= 0
        };
        let steps = shrink((1..=8).collect(), |steps| Ok(steps.contains(&1)), more).unwrap();
        assert!(steps.contains(&1) && steps.len() < 8);
    }
}
