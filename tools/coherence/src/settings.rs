//! The plugin's arguments: `-plugin FILE,out=PATH,mode=transfers,...`.

/// What to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Instructions only: the kernel's memory accesses are not examined.
    Count,
    /// Instructions and lines moved.
    Transfers,
    /// Instructions, and the blocks of the kernel that they are in; on one CPU.
    Profile,
    /// Lines that two CPUs access within short windows, see [`crate::window`].
    Windows,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What to count.
    pub mode: Mode,
    /// The file that the records are written to.
    pub out: String,
    /// NUMA nodes of the machine.
    pub nodes: u64,
    /// Its memory in MiB.
    pub mem_mib: u64,
    /// Addresses of kernel entry points whose executions are counted, in order.
    pub watches: Vec<u64>,
    /// Address of the table through which a kernel with `heap-labels` announces its heap objects.
    pub labels: Option<u64>,
}

impl Settings {
    /// Reads `name=value` arguments.
    ///
    /// # Errors
    /// The message for the first wrong argument.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Settings, String> {
        let mut settings = Settings {
            mode: Mode::Count,
            out: String::new(),
            nodes: 1,
            mem_mib: 1024,
            watches: Vec::new(),
            labels: None,
        };
        for arg in args {
            let (name, value) = arg
                .split_once('=')
                .ok_or(format!("{arg} is not NAME=VALUE"))?;
            let bad = |_| format!("{arg}: not a number");
            match (name, value) {
                ("mode", "count") => settings.mode = Mode::Count,
                ("mode", "transfers") => settings.mode = Mode::Transfers,
                ("mode", "profile") => settings.mode = Mode::Profile,
                ("mode", "windows") => settings.mode = Mode::Windows,
                ("out", path) => settings.out = path.into(),
                ("nodes", n) => settings.nodes = n.parse().map_err(bad)?,
                ("mem", n) => settings.mem_mib = n.parse().map_err(bad)?,
                ("watch" | "labels", hex) => {
                    let addr = u64::from_str_radix(hex.trim_start_matches("0x"), 16);
                    let addr = addr.map_err(bad)?;
                    if name == "watch" {
                        settings.watches.push(addr);
                    } else {
                        settings.labels = Some(addr);
                    }
                }
                _ => return Err(format!("{arg}: no such argument")),
            }
        }
        if settings.out.is_empty() {
            return Err("out=FILE is missing".into());
        }
        if settings.watches.len() > crate::cpu::WATCHES {
            return Err(format!("at most {} watches", crate::cpu::WATCHES));
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Settings, String> {
        Settings::parse(words.iter().map(|&word| word.to_owned()))
    }

    #[test]
    fn arguments_are_read() {
        let settings = parse(&[
            "out=/x",
            "mode=transfers",
            "nodes=2",
            "watch=0xffffffff81000000",
        ])
        .unwrap();
        assert_eq!((settings.mode, settings.nodes), (Mode::Transfers, 2));
        assert_eq!(settings.watches, [0xffff_ffff_8100_0000]);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(parse(&[]).unwrap_err().contains("out"));
        assert!(
            parse(&["out=/x", "mode=fast"])
                .unwrap_err()
                .contains("mode=fast")
        );
        assert!(
            parse(&["out=/x", "nodes=two"])
                .unwrap_err()
                .contains("nodes=two")
        );
        assert!(parse(&["out"]).is_err());
    }
}
