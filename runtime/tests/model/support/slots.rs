//! Slots cut, copied and put back, on any device: what follows must have the same bits.

use super::random;
use w4pack_runtime::device::{Contents, Decoded, MOST_TRIED, Rings, reaches};
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

/// Tokens tried behind every length, of which none to all are kept: what each leads to, and all that
/// follows, is what comes of them one by one, and a slot holds nothing else of them.
pub fn tries_change_nothing(device: &mut dyn Device, lengths: &[usize]) {
    let longest = *lengths.iter().max().expect("lengths");
    let (tokens, tried) = (random::tokens(longest, 5), random::tokens(MOST_TRIED, 6));
    let other = random::tokens(2 * BEHIND, 7);
    let context = longest + MOST_TRIED + other.len();
    assert_eq!(device.most_tried(), MOST_TRIED);
    let slot = device.make_slot(context).expect("a slot");
    let start = |device: &mut dyn Device, length: usize| {
        device.memory().restore(slot, 0, None).expect("nothing can always be kept");
        read(device, slot, &tokens[..length], Wanted::Nothing);
    };
    for &length in lengths {
        // One by one: what they lead to, what the slot holds then, and what comes behind.
        let (mut rows, mut held, mut behind) = (Vec::new(), Vec::new(), Vec::new());
        for kept in 0..=MOST_TRIED {
            start(device, length);
            let decode = |&token: &u32| device.decode(slot, token).expect("it runs");
            rows = tried[..kept].iter().map(decode).collect();
            held.push(device.memory().export(slot).expect("it is in use"));
            behind.push(go_on(device, slot, &other));
        }
        for count in 2..=MOST_TRIED {
            for kept in [0, 1, count / 2, count - 1, count] {
                let name = format!("{kept} of {count} behind {length}");
                start(device, length);
                let mut trial = device.try_tokens(slot, &tried[..count]).expect("they run");
                for (number, row) in rows[..count].iter().enumerate() {
                    let found = trial.leads_to(number, true).expect("it ran");
                    assert!(found == Decoded::Logits(row.clone()), "{name}: row {number}");
                    let best = trial.leads_to(number, false).expect("it ran");
                    let expected = w4pack_runtime::sampling::greedy(row).expect("finite");
                    assert_eq!(best, Decoded::Likeliest(expected), "{name}: row {number}");
                }
                match kept {
                    0 => drop(trial),
                    _ => trial.keep(kept),
                }
                let positions = device.memory().positions(slot).expect("it is in use");
                assert_eq!(positions, length + kept, "{name}");
                assert!(device.memory().export(slot).expect("in use") == held[kept], "{name}");
                assert!(go_on(device, slot, &other) == behind[kept], "{name}: behind");
                if kept == 0 {
                    continue;
                }
                // A cut by one goes back as far as ever.
                start(device, length);
                device.try_tokens(slot, &tried[..count]).expect("they run").keep(kept);
                device.memory().restore(slot, length + kept - 1, None).expect("within reach");
                assert!(go_on(device, slot, &other) == behind[kept - 1], "{name}: cut");
            }
        }
    }
    for count in [0, 1, MOST_TRIED + 1] {
        let tokens = random::tokens(count, 8);
        let error = device.try_tokens(slot, &tokens).err().expect("too few or too many");
        assert!(error.to_string().contains("2 to 8"), "{error}");
    }
    device.free_slot(slot).expect("it is in use");
}

/// Cut by one time and again without a token in between, a slot says when its rings have lost what it
/// needs, or goes on as a fresh one.
pub fn cuts_in_a_row_are_right_or_refused(device: &mut dyn Device, lengths: &[usize]) {
    let longest = *lengths.iter().max().expect("lengths");
    let (tokens, other) = (random::tokens(longest, 1), random::tokens(2 * BEHIND, 2));
    let slot = device.make_slot(longest + other.len()).expect("a slot");
    let fresh = device.make_slot(longest + other.len()).expect("a slot");
    for &length in lengths {
        for cuts in 1..=length.min(4) {
            device.memory().restore(slot, 0, None).expect("nothing can always be kept");
            read(device, slot, &tokens[..length], Wanted::Nothing);
            let cut = |target: usize| device.memory().restore(slot, target, None);
            if (length - cuts..length).rev().map(cut).any(|cut| cut.is_err()) {
                assert!(cuts > 1, "by one from {length}");
                continue;
            }
            device.memory().restore(fresh, 0, None).expect("nothing can always be kept");
            read(device, fresh, &tokens[..length - cuts], Wanted::Nothing);
            let expected = go_on(device, fresh, &other);
            assert!(go_on(device, slot, &other) == expected, "{length} cut by one {cuts} times");
        }
    }
    device.free_slot(slot).expect("it is in use");
    device.free_slot(fresh).expect("it is in use");
}
