//! The files that execve(2) runs: ELF files, scripts and their interpreters, and files that it refuses.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use elfload::ElfError;
use hal::uaccess::{UserPtr, read_cstr};
use hal::uio::IoBuf;
use proc::image::ExecError;
use proc::rlimit::Limit;
use proc::signal::{Action, action, sig};
use proc::wait4::{Children, WaitError};
use proc::{Resource, futex};
use programs::{
    MEMORY, PAGE, Refused, catch, count, elf, execute, install, install_bytes, is_asleep, join,
    load, next, run, store, thread, until_asleep, with_memory,
};
use support::{exited, fork, me, on, wait};
use task::park::Deadline;
use vfs::FsError;
use vfs::eventfd::EventCounter;
use vfs::file::{File, Kind, o};

/// The strings that the list of addresses at `at` names, and the address behind the list.
fn list(mut at: u64) -> (Vec<String>, u64) {
    let mut all = Vec::new();
    loop {
        let word = UserPtr::<u64>::new(at).read().expect("a stack");
        at += 8;
        if word == 0 {
            return (all, at);
        }
        let text = read_cstr(word, 4096).expect("a string");
        all.push(String::from_utf8(text).expect("ASCII"));
    }
}

#[test]
fn a_program_finds_its_arguments_and_environment_on_its_stack() {
    on(1, || {
        install("/p", 0o755, |frame| {
            let argc = UserPtr::<u64>::new(frame.rsp).read();
            let (argv, next) = list(frame.rsp + 8);
            let (envp, aux) = list(next);
            assert_eq!(argc.ok(), Some(3));
            assert_eq!(argv, ["one", "", "three"]);
            assert_eq!(envp, ["HOME=/", "X="]);
            assert_eq!(frame.rsp % 16, 0);
            // A tag of the auxiliary vector follows.
            assert!(UserPtr::<u64>::new(aux).read().is_ok_and(|tag| tag != 0));
            0
        });
        let child = fork(|| {
            let frame = execute("/p", &["one", "", "three"], &["HOME=/", "X="]);
            hal::context::enter_user(&frame.expect("a program"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn code_may_not_be_written() {
    on(1, || {
        install("/p", 0o755, |_| {
            let code = 0x40_0000;
            assert_eq!(load(code), Some(u32::from_le_bytes(*b"\x7fELF")));
            u8::from(UserPtr::<u32>::new(code).write(&1).is_ok())
        });
        let child = fork(|| panic!("{:?}", run("/p")));
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn a_program_that_cannot_be_loaded_leaves_the_caller_as_it_was() {
    on(2, || {
        install_bytes("/text", 0o755, b"not a program");
        install_bytes("/short", 0o755, &elf::program(0)[..100]);
        install("/private", 0o644, |_| 0);
        install("/huge", 0o755, |_| 0);
        let [code, mut data] = elf::segments();
        data.len = 1 << 47;
        install_bytes("/toolong", 0o755, &elf::file(0, &[code, data], &[]));
        programs::in_child(|| {
            store(MEMORY, 5);
            catch(sig::INT);
            let tid = thread(|| {
                let result = futex::wait(MEMORY, false, 5, futex::ANY, Deadline::Never);
                assert_eq!(result, Ok(()));
            });
            until_asleep(tid);
            let refused = |path| run(path);
            let file = |error| Refused::Exec(ExecError::File(error));
            assert_eq!(refused("/none"), file(FsError::NotFound));
            assert_eq!(refused("/private"), file(FsError::Access));
            assert_eq!(refused("/"), file(FsError::Access));
            let not_elf = Refused::Exec(ExecError::Format(ElfError::NotElf));
            assert_eq!(refused("/text"), not_elf);
            let short = Refused::Exec(ExecError::Format(ElfError::BadHeaders));
            assert_eq!(refused("/short"), short);
            assert!(matches!(refused("/toolong"), Refused::Exec(_)));
            assert!(is_asleep(tid));
            assert_eq!(load(MEMORY), Some(5));
            assert_ne!(action(&me(), sig::INT), Action::default());
            assert_eq!(futex::wake(MEMORY, false, 1, futex::ANY), Ok(1));
            join(tid);
        });
    });
}

#[test]
fn a_file_that_is_open_for_writing_is_not_executed() {
    on(1, || {
        install("/p", 0o755, |_| 0);
        programs::in_child(|| {
            let file = programs::open("/p", o::WRONLY);
            assert!(file.is_some());
            let busy = Refused::Exec(ExecError::File(FsError::TextBusy));
            assert_eq!(run("/p"), busy);
            drop(file);
            assert!(execute("/p", &[], &[]).is_ok());
            // Now it runs.
            assert!(programs::open("/p", o::WRONLY).is_none());
        });
    });
}

#[test]
fn a_limit_of_memory_refuses_a_program_that_is_larger() {
    on(1, || {
        install("/p", 0o755, |_| panic!("a program that is larger"));
        programs::in_child(|| {
            let limit = |soft| Limit {
                soft,
                hard: u64::MAX,
            };
            for which in [Resource::As, Resource::Data] {
                assert!(me().set_limit(which, limit(8 * PAGE), true).is_ok());
                assert_eq!(run("/p"), Refused::Exec(ExecError::NoMemory));
                let none = limit(u64::MAX);
                assert_eq!(me().set_limit(which, none, true), Ok(limit(8 * PAGE)));
            }
            assert!(execute("/p", &[], &[]).is_ok());
        });
    });
}

#[test]
fn a_script_is_run_by_its_interpreter() {
    on(1, || {
        install("/bin", 0o755, |frame| {
            let (argv, _) = list(frame.rsp + 8);
            assert_eq!(argv, ["/bin", "-x y", "/script", "last"]);
            assert_eq!(&me().comm()[..7], b"script\0");
            0
        });
        install_bytes("/script", 0o755, b"#! /bin -x y \nignored\n");
        let child = fork(|| {
            let frame = execute("/script", &["first", "last"], &[]);
            hal::context::enter_user(&frame.expect("a program"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn scripts_may_interpret_one_another_but_not_without_end() {
    on(1, || {
        install("/s0", 0o755, |_| 0);
        for n in 1..8 {
            let line = format!("#!/s{}\n", n - 1);
            install_bytes(&format!("/s{n}"), 0o755, line.as_bytes());
        }
        install_bytes("/self", 0o755, b"#!/self\n");
        install_bytes("/empty", 0o755, b"#!\n");
        install_bytes("/lost", 0o755, b"#!/none\n");
        programs::in_child(|| {
            assert_eq!(run("/self"), Refused::Exec(ExecError::Loop));
            assert_eq!(run("/s6"), Refused::Exec(ExecError::Loop));
            assert_eq!(run("/empty"), Refused::Exec(ExecError::Script));
            let lost = Refused::Exec(ExecError::File(FsError::NotFound));
            assert_eq!(run("/lost"), lost);
            assert!(execute("/s5", &["/s5"], &[]).is_ok());
        });
    });
}

#[test]
fn a_dynamic_program_begins_in_its_linker() {
    on(1, || {
        let began = count();
        let theirs = began.clone();
        install("/linker", 0o755, move |_| {
            next(&theirs);
            0
        });
        install_bytes("/p", 0o755, &elf::dynamic(MEMORY, "/linker"));
        install_bytes("/q", 0o755, &elf::dynamic(MEMORY, "/none"));
        install_bytes(
            "/text",
            0o755,
            b"no linker, but a text of some length that ends here.......................",
        );
        install_bytes("/r", 0o755, &elf::dynamic(MEMORY, "/text"));
        programs::in_child(move || {
            let lost = Refused::Exec(ExecError::File(FsError::NotFound));
            assert_eq!(run("/q"), lost);
            assert_eq!(run("/r"), Refused::Exec(ExecError::BadInterp));
            let child = fork(|| panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            assert_eq!(began.load(SeqCst), 1);
            assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
        });
    });
}

#[test]
fn an_event_counter_takes_no_part_of_a_number() {
    with_memory(1, || {
        let counter = EventCounter::new(5, false);
        let file = File::open(None, Kind::Other(Box::new(counter)), o::RDWR);
        let end = MEMORY + 16 * PAGE;
        let added = |at| file.write(&mut IoBuf::user(at, 8));
        assert_eq!(
            (added(end - 4), added(end - 8)),
            (Err(FsError::Fault), Ok(8))
        );
        let mut bytes = [0; 8];
        assert_eq!(file.read(&mut IoBuf::Fill(&mut bytes)), Ok(8));
        assert_eq!(u64::from_ne_bytes(bytes), 5);
    });
}
