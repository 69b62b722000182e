//! Slots cut, copied and put back, on any device: what follows must have the same bits.

use super::random;
use w4pack_runtime::device::{Contents, Rings, reaches};
use w4pack_runtime::{Device, Slot, Wanted, Work};

/// Tokens behind a cut: more than the tiny window, so that every row of a ring takes part.
const BEHIND: usize = 11;

fn read(device: &mut dyn Device, slot: Slot, tokens: &[u32], logits: Wanted) -> Vec<f32> {
    if tokens.is_empty() {
        return Vec::new();
    }
    device.step(&[Work { slot, tokens, logits }]).expect("it runs").swap_remove(0)
}

/// Logits of some tokens more, read, and of some decoded behind them.
fn go_on(device: &mut dyn Device, slot: Slot, tokens: &[u32]) -> Vec<f32> {
    let mut rows = read(device, slot, &tokens[..BEHIND], Wanted::All);
    for &token in &tokens[BEHIND..] {
        rows.extend(device.decode(slot, token).expect("it runs"));
    }
    rows
}

/// Every length a sequence can be cut to, with its own rings and with copies taken on the way, in
/// all four orders of length, copy, target and window.
pub fn cuts_change_nothing(device: &mut dyn Device, window: usize, lengths: &[usize]) {
    let longest = *lengths.iter().max().expect("lengths");
    let (tokens, other) = (random::tokens(longest, 1), random::tokens(2 * BEHIND, 2));
    let context = longest + 3 * BEHIND;
    let (slot, fresh) = (device.make_slot(context), device.make_slot(context));
    let (slot, fresh) = (slot.expect("a slot"), fresh.expect("a slot"));
    for &length in lengths {
        device.memory().restore(slot, 0, None).expect("nothing can always be kept");
        let mut copies: Vec<Rings> = Vec::new();
        let mut stops = vec![1, window - 1, window, window + 1, length / 2, length - 1, length];
        stops.retain(|&stop| (1..=length).contains(&stop));
        stops.sort_unstable();
        stops.dedup();
        let mut first = 0;
        for stop in stops {
            read(device, slot, &tokens[first..stop], Wanted::Nothing);
            copies.push(device.memory().save_rings(slot).expect("it is in use"));
            first = stop;
        }
        for target in 0..=length {
            let mut ways: Vec<Option<&Rings>> = vec![None];
            ways.extend(copies.iter().map(Some));
            device.memory().restore(fresh, 0, None).expect("nothing can always be kept");
            read(device, fresh, &tokens[..target], Wanted::Nothing);
            let expected = go_on(device, fresh, &other);
            for rings in ways {
                let positions = rings.map_or(length, |rings| rings.positions);
                let restored = device.memory().restore(slot, target, rings);
                let name = format!("{length} cut to {target} with rings of {positions}");
                if !reaches(positions, target, window) {
                    let error = restored.expect_err(&name).to_string();
                    assert!(error.contains(&target.to_string()), "{name}: {error}");
                    assert_eq!(device.memory().positions(slot).expect("in use"), length, "{name}");
                    continue;
                }
                restored.expect(&name);
                assert_eq!(go_on(device, slot, &other), expected, "{name}");
                // Back to where it was.
                device.memory().restore(slot, 0, None).expect("nothing can always be kept");
                read(device, slot, &tokens[..length], Wanted::Nothing);
            }
        }
    }
    device.free_slot(slot).expect("it is in use");
    device.free_slot(fresh).expect("it is in use");
}

/// What a slot holds, put into another one; and contents that no slot can hold.
pub fn copies_change_nothing(device: &mut dyn Device, lengths: &[usize]) {
    let longest = *lengths.iter().max().expect("lengths");
    let (tokens, other) = (random::tokens(longest, 3), random::tokens(2 * BEHIND, 4));
    let context = longest + 2 * BEHIND;
    for &length in lengths {
        let (slot, copy) = (device.make_slot(context), device.make_slot(context));
        let (slot, copy) = (slot.expect("a slot"), copy.expect("a slot"));
        read(device, slot, &tokens[..length], Wanted::Nothing);
        // The copy goes into a slot that held something else.
        read(device, copy, &other[..7], Wanted::Nothing);
        let contents = device.memory().export(slot).expect("it is in use");
        assert_eq!(contents.rings.positions, length);

        let Contents { full, rings } = &contents;
        let cut = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
        let bytes = |rings: &Rings, bytes| Rings { bytes, ..rings.clone() };
        let more = Rings { positions: context + 1, bytes: rings.bytes.clone() };
        for faulty in [
            Contents { full: cut(full), ..contents.clone() },
            Contents { rings: bytes(rings, cut(&rings.bytes)), ..contents.clone() },
            Contents { rings: more, ..contents.clone() },
        ] {
            device.memory().import(copy, &faulty).expect_err("it does not fit");
            assert_eq!(device.memory().positions(copy).expect("in use"), 7);
        }

        device.memory().import(copy, &contents).expect("it fits");
        assert_eq!(device.memory().export(copy).expect("it is in use"), contents);
        let expected = go_on(device, slot, &other);
        assert_eq!(go_on(device, copy, &other), expected, "{length}");
        device.free_slot(slot).expect("it is in use");
        device.free_slot(copy).expect("it is in use");
    }
}
