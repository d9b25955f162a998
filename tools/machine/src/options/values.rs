//! Values of settings that are more than a word or a number.

use anyhow::{Context, Result, ensure};
use std::ops::Deref;

/// A list in one value, split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

impl Deref for Words {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

/// A list with spaces between.
pub(super) fn spaced(text: &str) -> Result<Words> {
    Ok(Words(text.split_whitespace().map(str::to_owned).collect()))
}

/// A list with commas between.
pub(super) fn listed(text: &str) -> Result<Words> {
    let words = text.split(',').filter(|word| !word.is_empty());
    Ok(Words(words.map(str::to_owned).collect()))
}

/// A list of what boots of `bench` are of.
pub(super) fn kinds(text: &str) -> Result<Words> {
    const KINDS: [&str; 8] = [
        "count",
        "transfers",
        "rate",
        "scale",
        "scarce",
        "build",
        "hubs",
        "jobs",
    ];
    chosen(text, &KINDS, |kind, known| {
        known.starts_with(kind) || kind.starts_with(known)
    })
}

/// A list of kernels.
pub(super) fn systems(text: &str) -> Result<Words> {
    const SYSTEMS: [&str; 2] = ["pantala", "linux"];
    chosen(text, &SYSTEMS, |system, known| system == known)
}

fn chosen(text: &str, known: &[&str], fits: fn(&str, &str) -> bool) -> Result<Words> {
    let words = listed(text)?;
    for word in words.iter() {
        ensure!(
            known.iter().any(|known| fits(word, known)),
            "\"{word}\" is none of them: write some of {}",
            known.join(", ")
        );
    }
    Ok(words)
}

/// A whole number between bounds.
pub(super) fn whole<const LEAST: u64, const MOST: u64, T: TryFrom<u64>>(text: &str) -> Result<T> {
    let number = text.parse().ok();
    let number = number.filter(|number| (LEAST..=MOST).contains(number));
    let number = number.and_then(|number| T::try_from(number).ok());
    number.with_context(|| match MOST {
        u64::MAX => format!("write a whole number, {LEAST} or more"),
        most => format!("write a whole number from {LEAST} to {most}"),
    })
}

/// `512M`, `4G` or a plain number of MiB.
///
/// # Errors
/// Not such a size.
pub fn mebibytes(text: &str) -> Result<u64> {
    let (digits, factor) = match text.chars().last() {
        Some('M' | 'm') => (&text[..text.len() - 1], 1),
        Some('G' | 'g') => (&text[..text.len() - 1], 1024),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok();
    let number = number.context("write 512M, 4G or a number of MiB")?;
    number.checked_mul(factor).context("too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_mebibytes_unless_they_say_otherwise() {
        assert_eq!(mebibytes("512").unwrap(), 512);
        assert_eq!(mebibytes("512M").unwrap(), 512);
        assert_eq!(mebibytes("4G").unwrap(), 4096);
        assert!(mebibytes("").is_err());
        assert!(mebibytes("G").is_err());
        assert!(mebibytes("99999999999999999999G").is_err());
    }

    #[test]
    fn numbers_keep_to_their_bounds() {
        assert_eq!(whole::<1, 256, u32>("256").unwrap(), 256);
        assert!(whole::<1, 256, u32>("257").is_err() && whole::<1, 256, u32>("-1").is_err());
        let told = whole::<0, { u64::MAX }, u64>("x").unwrap_err();
        assert_eq!(told.to_string(), "write a whole number, 0 or more");
    }

    #[test]
    fn kinds_may_be_shortened_and_made_longer() {
        assert_eq!(
            *kinds("tr,scale1000").unwrap(),
            ["tr".to_owned(), "scale1000".to_owned()]
        );
        assert!(kinds("lines").is_err() && systems("pan").is_err());
    }
}
