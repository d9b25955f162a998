//! Queues that give back the room that they do not need.

use alloc::collections::VecDeque;

/// Entries for which an empty queue keeps room.
const KEEP: usize = 4;

/// To be called when an entry has gone: what is left has at most four times the room that it needs, if there is memory for a smaller
/// one. A constant time for each entry on average. Nobody is charged for the room.
pub(crate) fn trim<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() <= KEEP || queue.len() > queue.capacity() / 4 {
        return;
    }
    let mut smaller = VecDeque::new();
    if queue.is_empty() || smaller.try_reserve_exact(queue.len() * 2).is_ok() {
        smaller.extend(queue.drain(..));
        *queue = smaller;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_long_gives_its_room_back_and_keeps_what_it_has() {
        let mut queue: VecDeque<u64> = (0..1000).collect();
        let mut next = 0;
        while let Some(n) = queue.pop_front() {
            assert_eq!(n, next);
            next += 1;
            trim(&mut queue);
            assert!(
                queue.capacity() <= (4 * queue.len()).max(KEEP),
                "{}",
                queue.len()
            );
            assert!(queue.iter().copied().eq(next..1000));
        }
        assert_eq!(next, 1000);
    }
}
