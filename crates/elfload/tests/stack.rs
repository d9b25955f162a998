//! The initial stack, read back as by a program.
use elfload::stack::{AUXV_BYTES, AuxInfo, StackImage, Strings, tag};

fn strings(list: &[&str]) -> Strings {
    let mut s = Strings::new();
    list.iter()
        .for_each(|x| s.push(x.as_bytes(), 1 << 20).unwrap());
    s
}

struct Reader<'a>(&'a StackImage);

impl Reader<'_> {
    fn word(&self, addr: u64) -> u64 {
        let i = (addr - self.0.sp) as usize;
        u64::from_le_bytes(self.0.bytes[i..i + 8].try_into().unwrap())
    }
    fn text(&self, addr: u64) -> String {
        let i = (addr - self.0.sp) as usize;
        self.0.bytes[i..]
            .iter()
            .take_while(|&&b| b != 0)
            .map(|&b| b as char)
            .collect()
    }
}

#[test]
fn a_program_finds_everything() {
    let argv = strings(&["prog", "", "two words"]);
    let envp = strings(&["A=1", "HOME=/root"]);
    let aux = AuxInfo {
        entry: 0x401000,
        phdr: 0x400040,
        phnum: 9,
        random: [7; 16],
        ..AuxInfo::default()
    };
    let top = 0x7fff_ffff_e000;
    let image = StackImage::build(top, &argv, &envp, b"/bin/prog", &aux).unwrap();
    assert_eq!(image.sp % 16, 0);
    assert_eq!(image.sp + image.bytes.len() as u64, top);
    let r = Reader(&image);
    let mut at = image.sp;
    let mut next = || {
        at += 8;
        r.word(at - 8)
    };
    assert_eq!(next(), 3);
    let args: Vec<String> = (0..3).map(|_| r.text(next())).collect();
    assert_eq!(args, ["prog", "", "two words"]);
    assert_eq!(next(), 0);
    let env: Vec<String> = (0..2).map(|_| r.text(next())).collect();
    assert_eq!(env, ["A=1", "HOME=/root"]);
    assert_eq!(next(), 0);
    let mut seen = std::collections::BTreeMap::new();
    loop {
        let (k, v) = (next(), next());
        if k == tag::NULL {
            break;
        }
        assert!(seen.insert(k, v).is_none(), "tag {k} twice");
    }
    assert_eq!(image.auxv + AUXV_BYTES, at, "where the vector ends");
    assert_eq!(seen[&tag::ENTRY], 0x401000);
    assert_eq!(seen[&tag::PHNUM], 9);
    assert_eq!(r.text(seen[&tag::EXECFN]), "/bin/prog");
    assert_eq!(r.text(seen[&tag::PLATFORM]), "x86_64");
    assert_eq!(r.word(seen[&tag::RANDOM]), 0x0707_0707_0707_0707);
    assert_eq!(
        image.args.1 - image.args.0,
        "prog\0\0two words\0".len() as u64
    );
}

#[test]
fn the_limit_counts_pointers() {
    let mut s = Strings::new();
    assert!(s.push(&[b'x'; 91], 100).is_ok()); // 91 + NUL + pointer = 100
    assert!(s.push(b"", 100).is_err());
    assert_eq!(s.count(), 1);
}

#[test]
fn a_script_takes_the_first_place() {
    let mut s = strings(&["./run", "a", "b"]);
    s.replace_first(&[b"/bin/sh", b"-e", b"./run"], 1 << 20)
        .unwrap();
    assert_eq!(s.bytes(), b"/bin/sh\0-e\0./run\0a\0b\0");
    assert_eq!(s.count(), 5);
    assert!(s.replace_first(&[&[b'x'; 64]], 64).is_err());
    let mut none = Strings::new();
    none.replace_first(&[b"/bin/sh"], 64).unwrap();
    assert_eq!(none.count(), 1);
}
