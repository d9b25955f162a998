//! What readers get, the echo and the signals, for given input and settings.

use super::*;

struct T {
    l: Ldisc,
    wire: Vec<u8>,
    signals: Vec<TtySignal>,
}

impl T {
    fn new() -> Self {
        T {
            l: Ldisc::new(),
            wire: Vec::new(),
            signals: Vec::new(),
        }
    }
    fn with(edit: impl FnOnce(&mut Termios)) -> Self {
        let mut t = T::new();
        let mut s = *t.l.termios();
        edit(&mut s);
        t.l.set_termios(s);
        t
    }
    fn type_in(&mut self, bytes: &[u8]) {
        for &b in bytes {
            let wire = &mut self.wire;
            self.signals.extend(self.l.input(b, &mut |b| wire.push(b)));
        }
    }
    fn line(&mut self) -> Option<Vec<u8>> {
        let mut b = [0; BUFFER];
        self.l.take(&mut b).map(|(n, _)| b[..n].to_vec())
    }
}

#[test]
fn a_line_is_readable_only_when_complete() {
    let mut t = T::new();
    t.type_in(b"ab");
    assert_eq!(t.line(), None);
    t.type_in(b"c\rnext");
    assert_eq!(t.line().unwrap(), b"abc\n");
    assert_eq!(t.line(), None);
    assert_eq!(t.wire, b"abc\r\nnext");
}

#[test]
fn short_reads_continue_the_line() {
    let mut t = T::new();
    t.type_in(b"abcd\n");
    let mut b = [0; 3];
    assert_eq!(t.l.take(&mut b), Some((3, false)));
    assert_eq!(t.line().unwrap(), b"d\n");
}

/// What reads of three bytes, of which each ends a line or not, get.
fn threes(t: &mut T) -> Vec<(Vec<u8>, bool)> {
    let mut b = [0; 3];
    let mut reads = Vec::new();
    while let Some((n, ended)) = t.l.take(&mut b) {
        reads.push((b[..n].to_vec(), ended));
    }
    reads
}

#[test]
fn a_read_that_ends_at_an_end_of_file_takes_its_mark() {
    for (typed, reads) in [
        (&b"abc\x04"[..], &[(&b"abc"[..], true)][..]),
        (b"abc\x04\x04", &[(b"abc", true), (b"", true)]),
        (
            b"abc\x04def\n",
            &[(b"abc", true), (b"def", false), (b"\n", true)],
        ),
        (b"ab\n\x04", &[(b"ab\n", true), (b"", true)]),
        (b"abcd\x04", &[(b"abc", false), (b"d", true)]),
        // A zero byte that was typed is no mark.
        (b"abc\x16\0\x04", &[(b"abc", false), (b"\0", true)]),
        (b"abc\x16\0\n", &[(b"abc", false), (b"\0\n", true)]),
    ] {
        let mut t = T::new();
        t.type_in(typed);
        let expected: Vec<_> = reads.iter().map(|&(b, end)| (b.to_vec(), end)).collect();
        assert_eq!(threes(&mut t), expected, "{typed:?}");
    }
}

#[test]
fn a_read_of_nothing_leaves_an_end_of_file() {
    let mut t = T::new();
    t.type_in(b"\x04");
    assert_eq!(t.l.take(&mut []), Some((0, false)));
    assert_eq!(t.line().unwrap(), b"");
    assert_eq!(t.line(), None);
}

#[test]
fn erase_word_kill() {
    let mut t = T::new();
    t.type_in(b"abx\x7fc foo bar\x17\x17z\n");
    assert_eq!(t.line().unwrap(), b"abc z\n");
    t.type_in(b"rubbish\x15good\n");
    assert_eq!(t.line().unwrap(), b"good\n");
    let mut t = T::new();
    t.type_in(b"a\x7f\x7f");
    assert_eq!(t.wire, b"a\x08 \x08");
}

/// What is echoed to each of `typed`, without the local flags `off`.
fn echoes(off: u32, typed: &[&[u8]]) -> Vec<String> {
    let mut t = T::with(|s| s.lflag &= !off);
    typed
        .iter()
        .map(|bytes| {
            t.wire.clear();
            t.type_in(bytes);
            String::from_utf8_lossy(&t.wire).into_owned()
        })
        .collect()
}

#[test]
fn a_word_is_wiped_whether_or_not_a_character_would_be() {
    const BAR: &str = "\x08 \x08\x08 \x08\x08 \x08";
    let typed: [&[u8]; 5] = [b"foo bar", b"\x7f", b"r\x17", b"\x7f", b"\x17"];
    assert_eq!(
        echoes(lflag::ECHOE, &typed),
        ["foo bar", "^?", &format!("r{BAR}"), "^?", BAR]
    );
    assert_eq!(echoes(lflag::ECHOE, &[b"\x7f", b"\x17"]), ["", ""]);
    assert_eq!(echoes(lflag::ECHO, &typed), [""; 5]);
}

#[test]
fn a_line_is_wiped_only_with_all_three_flags() {
    const KILL: &[u8] = b"\x15";
    for (off, shown) in [
        (0, "\x08 \x08\x08 \x08"),
        (lflag::ECHOE, "^U\r\n"),
        (lflag::ECHOK, "^U"),
        (lflag::ECHOKE, "^U\r\n"),
        (lflag::ECHOE | lflag::ECHOK, "^U"),
        (lflag::ECHOKE | lflag::ECHOK, "^U"),
        (lflag::ECHO, ""),
    ] {
        let typed = if off & lflag::ECHO == 0 { "ab" } else { "" };
        // A line without a character is not killed.
        let expected = ["", typed, shown, ""];
        assert_eq!(echoes(off, &[KILL, b"ab", KILL, KILL]), expected, "{off:o}");
    }
}

#[test]
fn utf8_erase_removes_a_character() {
    let mut t = T::with(|s| s.iflag |= iflag::IUTF8);
    t.type_in("aé\x7fb\n".as_bytes());
    assert_eq!(t.line().unwrap(), b"ab\n");
}

#[test]
fn erased_tab_goes_back_to_its_start() {
    let mut t = T::new();
    t.type_in(b"ab\t");
    t.wire.clear();
    t.type_in(b"\x7f");
    assert_eq!(t.wire, [8; 6]);
}

#[test]
fn an_erased_tab_wipes_nothing_of_what_was_printed_behind_it() {
    let mut t = T::new();
    t.type_in(b"ab\t");
    t.l.output(&[b'x'; 500], &mut |_| ());
    t.wire.clear();
    t.type_in(b"\x7f");
    assert_eq!(t.wire, [8; 6]);
}

#[test]
fn end_of_file() {
    let mut t = T::new();
    t.type_in(b"\x04");
    assert_eq!(t.line().unwrap(), b"");
    t.type_in(b"part\x04");
    assert_eq!(t.line().unwrap(), b"part");
    assert_eq!(t.line(), None);
}

#[test]
fn signals_flush_and_echo() {
    let mut t = T::new();
    t.type_in(b"junk\x03ok\n");
    assert_eq!(t.signals, [TtySignal::Interrupt]);
    assert_eq!(t.line().unwrap(), b"ok\n");
    assert_eq!(t.wire, b"junk^Cok\r\n");
    let mut t = T::with(|s| s.lflag &= !lflag::ISIG);
    t.type_in(b"\x03\n");
    assert!(t.signals.is_empty());
    assert_eq!(t.line().unwrap(), b"\x03\n");
}

#[test]
fn literal_next() {
    let mut t = T::new();
    t.type_in(b"a\x16\x03b\n");
    assert!(t.signals.is_empty());
    assert_eq!(t.line().unwrap(), b"a\x03b\n");
}

#[test]
fn raw_mode_passes_everything() {
    let mut t = T::with(|s| {
        s.lflag = 0;
        s.iflag = 0;
    });
    t.type_in(b"\x03\r\x7f");
    assert_eq!(t.line().unwrap(), b"\x03\r\x7f");
    assert!(t.wire.is_empty());
}

#[test]
fn leaving_line_mode_releases_the_partial_line() {
    let mut t = T::new();
    t.type_in(b"abc");
    let mut s = *t.l.termios();
    s.lflag &= !lflag::ICANON;
    t.l.set_termios(s);
    assert_eq!(t.line().unwrap(), b"abc");
}

#[test]
fn overlong_line_keeps_room_for_its_end() {
    let mut t = T::new();
    t.type_in(&vec![b'x'; 2 * BUFFER]);
    t.type_in(b"\n");
    let line = t.line().unwrap();
    assert_eq!(line.len(), BUFFER);
    assert_eq!(line[BUFFER - 1], b'\n');
}

#[test]
fn flow_control() {
    let mut t = T::new();
    t.type_in(b"\x13");
    assert!(t.l.stopped());
    t.type_in(b"\x11");
    assert!(!t.l.stopped());
    assert_eq!(t.line(), None);
}

#[test]
fn output_processing() {
    let mut t = T::with(|s| s.oflag |= oflag::XTABS);
    let wire = &mut t.wire;
    t.l.output(b"a\tb\n", &mut |b| wire.push(b));
    assert_eq!(t.wire, b"a       b\r\n");
}

#[test]
fn termios_bytes_round_trip() {
    let t = Termios::fresh();
    assert_eq!(Termios::from_bytes(&t.to_bytes()), t);
}

#[test]
fn a_mark_of_an_end_of_file_is_no_byte() {
    let mut t = T::new();
    t.type_in(b"ab\x04\x04c\n");
    assert_eq!((t.l.available(), t.l.queued()), (6, 4));
}

#[test]
fn poll_reports_as_many_bytes_as_a_read_waits_for() {
    let raw = |min, time| {
        T::with(|s| {
            s.lflag &= !lflag::ICANON;
            s.cc[cc::VMIN] = min;
            s.cc[cc::VTIME] = time;
        })
    };
    for (min, time, typed, readable) in [
        (3, 0, &b"ab"[..], false),
        (3, 0, b"abc", true),
        (3, 1, b"a", true),
        (0, 0, b"", false),
        (0, 0, b"a", true),
    ] {
        let mut t = raw(min, time);
        t.type_in(typed);
        assert_eq!(t.l.is_readable(), readable, "{min} {time} {typed:?}");
    }
    let mut t = T::new();
    t.type_in(b"ab");
    assert!(!t.l.is_readable());
    t.type_in(b"\n");
    assert!(t.l.is_readable());
}

#[test]
fn a_full_buffer_takes_no_more_but_for_a_line_that_is_edited() {
    let fill = [b'x'; BUFFER];
    let mut t = T::with(|s| s.lflag &= !(lflag::ICANON | lflag::ECHO));
    for (n, takes, room) in [(0, true, true), (3073, true, false), (1022, false, false)] {
        t.type_in(&fill[..n]);
        assert_eq!((t.l.takes_input(), t.l.has_room()), (takes, room), "{n}");
    }
    assert_eq!(t.line().unwrap().len(), BUFFER - 1);
    assert!(t.l.takes_input() && t.l.has_room());
    let mut t = T::new();
    t.type_in(&fill);
    assert!(t.l.takes_input() && t.l.has_room());
    t.type_in(b"\n");
    assert!(!t.l.takes_input() && !t.l.has_room());
}

#[test]
fn which_bytes_raise_signals() {
    let t = T::new();
    assert_eq!(t.l.raises(3), Some((TtySignal::Interrupt, true)));
    assert_eq!(t.l.raises(b'a'), None);
    let mut t = T::with(|s| s.lflag |= lflag::NOFLSH);
    assert_eq!(t.l.raises(0x1c), Some((TtySignal::Quit, false)));
    t.type_in(b"\x16");
    assert_eq!(t.l.raises(0x1c), None);
    let t = T::with(|s| s.lflag &= !lflag::ISIG);
    assert_eq!(t.l.raises(3), None);
    // The character stops output before it could be one that raises a signal.
    let t = T::with(|s| s.cc[cc::VINTR] = 0x13);
    assert_eq!(t.l.raises(0x13), None);
    let t = T::with(|s| s.iflag |= iflag::ISTRIP);
    assert_eq!(t.l.raises(0x83), Some((TtySignal::Interrupt, true)));
}

#[test]
fn a_pseudo_terminal_has_eight_bits() {
    let t = Termios::fresh_pseudo();
    assert_eq!(t.cflag, 0o17 | 0o60 | 0o200);
    assert_eq!(
        Termios {
            cflag: 0o400 | 0o17,
            ..t
        }
        .of_pseudo(),
        t
    );
    assert!(t.stops_as_usual());
    let mut other = t;
    other.cc[cc::VSTOP] = 1;
    assert!(!other.stops_as_usual());
    other = Termios { iflag: 0, ..t };
    assert!(!other.stops_as_usual());
}
