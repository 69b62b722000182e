//! Room for the results of a prompt's products, used again and again.
//!
//! They are some MiB each. Memory that is fetched from the system for each of them, and given back, comes
//! as zeroed pages: 4 % of a prompt's time with AVX-512, and more the faster the products are.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers from which room is kept: results of single tokens are smaller.
const LEAST: usize = 1 << 16;
/// Rooms that are kept: as many as are in use at a time.
const MOST: usize = 6;

/// Rooms that nobody uses.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Vec<Vec<f32>>>);

impl Spare {
    /// Room for `length` numbers, whatever they are.
    pub fn room(&self, length: usize) -> Vec<f32> {
        let mut rooms = self.rooms();
        // Not one that is far too large: who gets the result may keep it.
        let fitting = (0..rooms.len()).filter(|&room| {
            length >= LEAST && (length..=2 * length).contains(&rooms[room].capacity())
        });
        let smallest = fitting.min_by_key(|&room| rooms[room].capacity());
        let Some(smallest) = smallest else { return vec![0.0; length] };
        let mut room = rooms.swap_remove(smallest);
        drop(rooms);
        room.resize(length, 0.0);
        room
    }

    /// Keeps a room; the smallest goes if there are enough.
    pub fn take_back(&self, room: Vec<f32>) {
        if room.capacity() < LEAST {
            return;
        }
        let mut rooms = self.rooms();
        rooms.push(room);
        if rooms.len() > MOST {
            let smallest = (0..rooms.len()).min_by_key(|&room| rooms[room].capacity());
            smallest.map(|room| rooms.swap_remove(room));
        }
    }

    /// Whole at any moment.
    fn rooms(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again_where_it_fits() {
        let spare = Spare::default();
        let first = spare.room(3 * LEAST);
        let place = first.as_ptr();
        spare.take_back(first);
        let small = spare.room(LEAST);
        assert_ne!(small.as_ptr(), place, "far too large");
        let again = spare.room(2 * LEAST);
        assert_eq!((again.as_ptr(), again.len()), (place, 2 * LEAST));
        spare.take_back(again);
        let whole = spare.room(3 * LEAST);
        assert_eq!((whole.as_ptr(), whole.len()), (place, 3 * LEAST));
        let other = spare.room(3 * LEAST);
        assert_ne!(other.as_ptr(), place, "in use");
    }

    #[test]
    fn no_more_is_kept_than_is_in_use_at_a_time() {
        let spare = Spare::default();
        for size in 1..2 * MOST {
            spare.take_back(vec![0.0; size * LEAST]);
        }
        assert_eq!(spare.rooms().len(), MOST);
        assert!(spare.rooms().iter().all(|room| room.len() >= MOST * LEAST), "the smallest went");
    }
}
