//! A random family of processes that fork, exit, wait, are killed and are orphaned, compared with a slow reference.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use abi::raw::general as raw;
use proc::group::setpgid;
use proc::ids;
use proc::reaper::set_subreaper;
use proc::signal::sig;
use proc::wait4::{self, Children, Event, Kind, Options, WaitError};
use programs::{fork_with, seeded};
use support::{kill, me, nap, on, user_mode};
use vm_host::random::Random;

/// Most processes at once.
const MOST: usize = 14;

/// What a member of the family is told to do.
#[derive(Clone, Copy, Debug)]
enum Command {
    /// Fork a child that sends this signal when it ends, or, with CLONE_PARENT, make a sibling.
    Fork {
        signo: u8,
        sibling: bool,
    },
    Exit(u8),
    Wait {
        children: Children,
        kind: Kind,
        keep: bool,
    },
    SetReaper(bool),
    SetDeathSignal(u8),
    LeadGroup,
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Made(u32),
    Waited(Result<Option<(u32, u32)>, WaitError>),
    Done,
}

/// Where commands and answers are left.
#[derive(Default)]
struct Board {
    commands: Mutex<BTreeMap<u32, Command>>,
    answers: Mutex<BTreeMap<u32, Answer>>,
}

/// Does what it is told, and answers.
fn obey(board: &Arc<Board>, command: Command) -> Answer {
    match command {
        Command::Fork { signo, sibling } => {
            let flags = if sibling { raw::CLONE_PARENT } else { 0 };
            let theirs = board.clone();
            Answer::Made(fork_with(signo, flags.into(), move || live(&theirs)))
        }
        Command::Wait {
            children,
            kind,
            keep,
        } => {
            let options = Options {
                exited: true,
                no_hang: true,
                keep,
                kind,
                ..Options::default()
            };
            let report = wait4::wait(children, options);
            Answer::Waited(report.map(|report| {
                report.map(|report| match report.event {
                    Event::Exited(status) => (report.pid, status),
                    other => panic!("{other:?}"),
                })
            }))
        }
        Command::SetReaper(on) => {
            set_subreaper(&me(), on);
            Answer::Done
        }
        Command::SetDeathSignal(signo) => {
            me().set_death_signal(signo);
            Answer::Done
        }
        Command::LeadGroup => {
            let pid = me().pid();
            assert_eq!(setpgid(pid, pid), Ok(()));
            Answer::Done
        }
        Command::Exit(_) => unreachable!("the program ends"),
    }
}

/// The program of each member.
fn live(board: &Arc<Board>) -> u8 {
    let pid = me().pid();
    loop {
        let command = board.commands.lock().unwrap().remove(&pid);
        match command {
            None => nap(1),
            Some(Command::Exit(code)) => return code,
            Some(command) => {
                let answer = obey(board, command);
                board.answers.lock().unwrap().insert(pid, answer);
            }
        }
        user_mode();
    }
}

/// A process that has not been reaped, as the reference has it.
#[derive(Clone, Debug)]
struct Member {
    parent: u32,
    group: u32,
    /// Its wait4 status, once it has ended.
    status: Option<u32>,
    /// The signal that its parent gets.
    signo: u8,
    is_reaper: bool,
    death_signal: u8,
}

type Tree = BTreeMap<u32, Member>;

fn children_of(tree: &Tree, pid: u32) -> Vec<u32> {
    let all = tree.iter().filter(|(_, member)| member.parent == pid);
    all.map(|(&pid, _)| pid).collect()
}

/// The nearest ancestor of `pid` that takes orphans.
fn reaper_of(tree: &Tree, pid: u32) -> u32 {
    let mut at = tree[&pid].parent;
    while at != 1 {
        let member = &tree[&at];
        if member.is_reaper && member.status.is_none() {
            return at;
        }
        at = member.parent;
    }
    1
}

/// `pid` ends. Its children go to another process; those that asked for it end, too.
fn end(tree: &mut Tree, pid: u32, status: u32) {
    let reaper = reaper_of(tree, pid);
    let children = children_of(tree, pid);
    tree.get_mut(&pid).expect("a member").status = Some(status);
    for child in &children {
        let child = tree.get_mut(child).expect("a member");
        (child.parent, child.signo) = (reaper, sig::CHLD);
    }
    for child in children {
        let member = &tree[&child];
        if member.death_signal != 0 && member.status.is_none() {
            end(tree, child, member.death_signal.into());
        }
    }
}

/// Checks a wait's result, and reaps what it reports.
fn check_wait(tree: &mut Tree, pid: u32, command: Command, got: Answer) {
    let Command::Wait {
        children,
        kind,
        keep,
    } = command
    else {
        panic!("{command:?}")
    };
    let matches = |child: &u32| {
        let member = &tree[child];
        let usual = member.signo == sig::CHLD;
        let of_kind = kind == Kind::All || usual == (kind == Kind::Usual);
        of_kind
            && match children {
                Children::Any => true,
                Children::Pid(wanted) => wanted == *child,
                Children::Group(group) => group == member.group,
            }
    };
    let all: Vec<u32> = children_of(tree, pid).into_iter().filter(matches).collect();
    let ended: Vec<(u32, u32)> = all
        .iter()
        .filter_map(|&child| Some((child, tree[&child].status?)))
        .collect();
    match got {
        Answer::Waited(Err(WaitError::NoChild)) => assert!(all.is_empty(), "{all:?}"),
        Answer::Waited(Ok(None)) => assert!(!all.is_empty() && ended.is_empty(), "{ended:?}"),
        Answer::Waited(Ok(Some(report))) => {
            assert!(ended.contains(&report), "{report:?} is not in {ended:?}");
            if !keep {
                tree.remove(&report.0);
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Has `pid` do something; init does it itself. `None` if the process ends by it.
fn tell(board: &Arc<Board>, pid: u32, command: Command) -> Option<Answer> {
    if pid == 1 {
        return Some(obey(board, command));
    }
    board.commands.lock().unwrap().insert(pid, command);
    loop {
        nap(1);
        if let Some(answer) = board.answers.lock().unwrap().remove(&pid) {
            return Some(answer);
        }
        if ids::find_process(pid).is_none_or(|p| p.is_zombie()) {
            return None;
        }
    }
}

/// The processes are what the reference says.
fn compare(tree: &Tree, gone: &[u32]) {
    for (&pid, member) in tree {
        let p = ids::find_process(pid).expect("a process that was not reaped");
        assert_eq!(p.ppid(), member.parent, "the parent of {pid}");
        assert_eq!(p.is_zombie(), member.status.is_some(), "the end of {pid}");
        assert_eq!(p.pgid(), member.group, "the group of {pid}");
    }
    for pid in gone.iter().filter(|pid| !tree.contains_key(pid)) {
        assert!(ids::find_process(*pid).is_none(), "{pid} was reaped");
    }
}

/// A command for `pid`, a living process.
fn choose(random: &mut Random, tree: &Tree, pid: u32) -> Command {
    let all: Vec<u32> = tree.keys().copied().collect();
    let signo = [sig::CHLD, sig::CHLD, sig::URG, 0][random.below(4)];
    match random.below(16) {
        0..=6 if tree.len() < MOST => Command::Fork {
            signo,
            sibling: pid != 1 && random.below(5) == 0,
        },
        7..=8 if pid != 1 => Command::Exit(random.below(256) as u8),
        9 if pid != 1 => Command::SetDeathSignal([sig::HUP, sig::KILL, 0][random.below(3)]),
        // Before it has children: see `an_orphan_of_an_older_family_goes_to_the_reaper` in `family_ends.rs`.
        10 if pid != 1 && children_of(tree, pid).is_empty() => {
            Command::SetReaper(random.below(3) > 0)
        }
        11 if pid != 1 => Command::LeadGroup,
        _ => Command::Wait {
            children: match random.below(4) {
                0 => Children::Pid(all.get(random.below(MOST)).copied().unwrap_or(77)),
                1 => Children::Group(all.get(random.below(MOST)).copied().unwrap_or(1)),
                _ => Children::Any,
            },
            kind: [Kind::Usual, Kind::Clones, Kind::All][random.below(3)],
            keep: random.below(4) == 0,
        },
    }
}

/// Notes in the reference what the command has done.
fn note(tree: &mut Tree, pid: u32, command: Command, answer: Option<Answer>) {
    match command {
        Command::Fork { signo, sibling } => {
            let Some(Answer::Made(child)) = answer else {
                panic!("{answer:?}")
            };
            let (parent, signo) = match sibling {
                true => (tree[&pid].parent, tree[&pid].signo),
                false => (pid, signo),
            };
            let member = Member {
                parent,
                group: tree.get(&pid).map_or(1, |maker| maker.group),
                status: None,
                signo,
                is_reaper: false,
                death_signal: 0,
            };
            assert!(tree.insert(child, member).is_none());
        }
        Command::Exit(code) => {
            assert_eq!(answer, None);
            end(tree, pid, u32::from(code) << 8);
        }
        Command::Wait { .. } => check_wait(tree, pid, command, answer.expect("an answer")),
        Command::SetReaper(on) => tree.get_mut(&pid).unwrap().is_reaper = on,
        Command::SetDeathSignal(signo) => tree.get_mut(&pid).unwrap().death_signal = signo,
        Command::LeadGroup => tree.get_mut(&pid).unwrap().group = pid,
    }
}

fn play(seed: u64, steps: usize) {
    let mut random = seeded(seed);
    let board = Arc::new(Board::default());
    let (mut tree, mut all) = (Tree::new(), Vec::new());
    for _ in 0..steps {
        let mut alive: Vec<u32> = vec![1];
        let living = tree.iter().filter(|(_, member)| member.status.is_none());
        alive.extend(living.map(|(&pid, _)| pid));
        let pid = alive[random.below(alive.len())];
        if pid != 1 && random.below(12) == 0 {
            let signo = [sig::KILL, sig::HUP][random.below(2)];
            assert!(kill(pid, signo));
            end(&mut tree, pid, signo.into());
        } else {
            let command = choose(&mut random, &tree, pid);
            let answer = tell(&board, pid, command);
            note(&mut tree, pid, command, answer);
        }
        nap(4);
        all.extend(tree.keys().copied());
        all.sort_unstable();
        all.dedup();
        compare(&tree, &all);
    }
    for (&pid, member) in &tree {
        assert!(member.status.is_some() || kill(pid, sig::KILL));
    }
    let any = Options {
        exited: true,
        kind: Kind::All,
        ..Options::default()
    };
    while wait4::wait(Children::Any, any).is_ok() {}
    assert!(all.iter().all(|&pid| ids::find_process(pid).is_none()));
}

#[test]
fn a_random_family_agrees_with_the_reference() {
    for seed in 0..16 {
        on(2, move || play(seed, 150));
    }
}

#[test]
fn a_random_family_agrees_with_the_reference_on_one_cpu() {
    for seed in 100..106 {
        on(1, move || play(seed, 150));
    }
}
