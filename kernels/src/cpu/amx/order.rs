//! The order in which the groups of a row are added, and lie in tiles.
//!
//! Lane by lane, as halves are added: 0 + 8, 4 + 12, and those two; 2 + 10, 6 + 14, …
//!
//! Tried: groups in the file's order, of which every sixteenth is of a lane. In rows of 6,144 that takes
//! longer than all the arithmetic: nothing fetches ahead what lies 16 KiB apart (loads, stores and scaling
//! without products, Zen 4: 138 ns for a group of a tile, in this order 44; in rows of 1,536 38 and 35).

use crate::cpu::numbers::LANES;

/// For rows of a number of groups.
#[derive(Debug, Default)]
pub struct Order {
    /// By place, the group that is there.
    pub groups: Vec<usize>,
    /// By group, where it is.
    pub places: Vec<usize>,
    /// By place, how many lanes end with it: a lane without groups is 0, and ends at once.
    pub ends: Vec<usize>,
}

impl Order {
    /// Of `groups` groups, one at least.
    pub fn of(groups: usize) -> Self {
        let mut order = Self {
            groups: Vec::with_capacity(groups),
            places: vec![0; groups],
            ends: vec![0; groups],
        };
        for turn in 0..LANES {
            let lane = usize::from((turn as u8).reverse_bits() >> 4);
            for group in (lane..groups).step_by(LANES) {
                order.places[group] = order.groups.len();
                order.groups.push(group);
            }
            order.ends[order.groups.len() - 1] += 1;
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_place_and_every_lane_an_end() {
        for groups in [1, 2, 15, 16, 17, 48, 63, 384] {
            let order = Order::of(groups);
            assert_eq!(order.groups.len(), groups);
            for (place, &group) in order.groups.iter().enumerate() {
                assert_eq!(order.places[group], place);
            }
            assert_eq!(order.ends.iter().sum::<usize>(), LANES);
            for (place, &ends) in order.ends.iter().enumerate() {
                let next = order.groups.get(place + 1);
                let changes = next.is_none_or(|next| next % LANES != order.groups[place] % LANES);
                assert_eq!(ends > 0, changes, "{groups} groups, place {place}");
            }
        }
        assert_eq!(Order::of(48).groups[..8], [0, 16, 32, 8, 24, 40, 4, 20]);
    }
}
