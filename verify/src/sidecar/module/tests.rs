use super::{Evidence, ModuleSidecar, Parts};

/// Groups as the source has them: zeros, negative zeros, whether the step is negative.
fn evidence(zeros: u32, negative_zeros: u32, step_is_negative: bool) -> Evidence {
    Evidence { zeros, negative_zeros, step_is_negative, finer: None, decided: true }
}

fn nothing() -> Parts {
    Parts {
        step_gaps: None,
        step_values: None,
        verbatim_gaps: None,
        verbatim_values: None,
        zero_rule: None,
        zero_gaps: None,
        zero_masks: None,
        zero_bits: None,
    }
}

/// Walks the groups. Gives what is wrong, group by group, and what is left over.
fn walk(parts: Parts, groups: &[Evidence]) -> Result<(Vec<usize>, Option<String>), String> {
    let mut sidecar = ModuleSidecar::new(parts)?;
    let wrong = |(number, group): (usize, &Evidence)| {
        sidecar.check_group(number as u64, group).map(|_| number)
    };
    let wrong = groups.iter().enumerate().filter_map(wrong).collect();
    Ok((wrong, sidecar.leftover()))
}

/// Zeros that follow the step's sign, but for bit 4 of group 1 and bit 0 of group 3.
fn by_the_step() -> [Evidence; 4] {
    [
        evidence(0b1_0001, 0, false),
        evidence(0b1_0001, 0b0_0001, true),
        evidence(0b1_0001, 0b1_0001, true),
        evidence(0b1_0001, 0b0_0001, false),
    ]
}

fn rule_1(gaps: &[u8], masks: &[u32]) -> Parts {
    Parts {
        zero_rule: Some(vec![1]),
        zero_gaps: Some(gaps.to_vec()),
        zero_masks: Some(masks.iter().flat_map(|mask| mask.to_le_bytes()).collect()),
        ..nothing()
    }
}

#[test]
fn exceptional_zeros_under_the_rule_of_the_step() {
    let good = walk(rule_1(&[1, 1], &[0b1_0000, 0b0_0001]), &by_the_step());
    assert_eq!(good, Ok((vec![], None)));
    // The same exceptions under rule 0 say something else of the groups with a negative step.
    let positive = Parts { zero_rule: None, ..rule_1(&[1, 1], &[0b1_0000, 0b0_0001]) };
    assert_eq!(walk(positive, &by_the_step()).unwrap().0, [1, 2]);
}

#[test]
fn damaged_gaps_and_masks_of_zeros() {
    let wrong = |parts| walk(parts, &by_the_step()).unwrap();
    // The wrong group, the wrong zero, an empty mask, an element that is no zero.
    assert_eq!(wrong(rule_1(&[0, 2], &[0b1_0000, 0b0_0001])).0, [0, 1]);
    assert_eq!(wrong(rule_1(&[1, 1], &[0b0_0001, 0b0_0001])).0, [1]);
    assert_eq!(wrong(rule_1(&[1, 1], &[0, 0b0_0001])).0, [1]);
    assert_eq!(wrong(rule_1(&[1, 1], &[0b1_0010, 0b0_0001])).0, [1]);
    // An exception too few, one behind the last group, one of a group without exceptions.
    assert_eq!(wrong(rule_1(&[1], &[0b1_0000])), (vec![3], None));
    let (groups, left) = wrong(rule_1(&[1, 1, 0], &[0b1_0000, 0b0_0001, 1]));
    assert!(groups.is_empty() && left.unwrap().contains("exceptional zeros names group 4"));
    assert_eq!(wrong(rule_1(&[1, 0, 0], &[0b1_0000, 0b0_0001, 0b0_0001])).0, [2]);
    // Lists of different lengths, half a number, lists of another rule.
    for parts in [
        rule_1(&[1, 1], &[0b1_0000]),
        rule_1(&[1], &[0b1_0000, 0b0_0001]),
        rule_1(&[1, 255], &[0b1_0000]),
        Parts { zero_bits: Some(vec![0]), ..rule_1(&[1], &[0b1_0000]) },
        Parts { zero_rule: Some(vec![2]), ..rule_1(&[1], &[0b1_0000]) },
        Parts { zero_rule: Some(vec![3]), ..nothing() },
        Parts { zero_rule: Some(vec![1, 1]), ..nothing() },
    ] {
        assert!(walk(parts, &by_the_step()).is_err());
    }
}

fn bits(bytes: &[u8]) -> Parts {
    Parts { zero_rule: Some(vec![2]), zero_bits: Some(bytes.to_vec()), ..nothing() }
}

#[test]
fn one_bit_for_each_zero() {
    let groups = by_the_step();
    // Two zeros a group, lowest first: 00, 10, 11, 10.
    let good = 0b0111_0100;
    assert_eq!(walk(bits(&[good]), &groups), Ok((vec![], None)));
    for (bit, group) in [(0, 0), (1, 0), (2, 1), (5, 2), (7, 3)] {
        assert_eq!(walk(bits(&[good ^ 1 << bit]), &groups).unwrap().0, [group]);
    }
    assert_eq!(walk(bits(&[]), &groups).unwrap().0, [0, 1, 2, 3]);
    assert!(walk(bits(&[good, 0]), &groups).unwrap().1.unwrap().contains("go on"));
    // Padding of the last byte.
    assert_eq!(walk(bits(&[0b0100]), &groups[..2]).unwrap(), (vec![], None));
    assert!(walk(bits(&[0b1_0100]), &groups[..2]).unwrap().1.is_some());
}

/// A group whose values a step gives back needs no values of its own, and none may lie there.
#[test]
fn verbatim_groups_are_only_for_what_no_step_gives_back() {
    let verbatim = |gaps: &[u8], groups: usize| Parts {
        verbatim_gaps: Some(gaps.to_vec()),
        verbatim_values: Some(vec![0; 64 * groups]),
        ..nothing()
    };
    let undecided = Evidence { decided: false, ..evidence(0b11, 0b01, false) };
    let groups = [evidence(0, 0, false), undecided, evidence(0, 0, false)];
    assert_eq!(walk(verbatim(&[1], 1), &groups), Ok((vec![], None)));
    assert_eq!(walk(verbatim(&[0], 1), &groups).unwrap().0, [0, 1]);
    assert!(walk(verbatim(&[3], 1), &groups).unwrap().1.unwrap().contains("verbatim groups"));
    for parts in [verbatim(&[1], 2), verbatim(&[1, 0], 1), verbatim(&[255], 0)] {
        assert!(walk(parts, &groups).is_err());
    }
    // Its zeros take part in no bits: the one bit is that of group 2.
    let both = Parts { zero_rule: Some(vec![2]), zero_bits: Some(vec![1]), ..verbatim(&[1], 1) };
    let groups = [evidence(0, 0, false), undecided, evidence(1, 1, false)];
    assert_eq!(walk(both, &groups), Ok((vec![], None)));
}

#[test]
fn finer_steps_stand_where_they_are_needed_and_nowhere_else() {
    let steps = |gaps: &[u8], values: &[f32]| Parts {
        step_gaps: Some(gaps.to_vec()),
        step_values: Some(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        ..nothing()
    };
    let finer = Evidence { finer: Some(0.5), ..evidence(0, 0, false) };
    let groups = [evidence(0, 0, false), finer, evidence(0, 0, false)];
    assert_eq!(walk(steps(&[1], &[0.5]), &groups), Ok((vec![], None)));
    assert_eq!(walk(steps(&[1], &[0.25]), &groups).unwrap().0, [1]);
    assert_eq!(walk(steps(&[0], &[0.5]), &groups).unwrap().0, [0, 1]);
    assert_eq!(walk(steps(&[1, 0], &[0.5, 0.5]), &groups).unwrap().0, [2]);
    assert_eq!(walk(nothing(), &groups).unwrap().0, [1]);
    assert!(walk(steps(&[1, 4], &[0.5, 1.0]), &groups).unwrap().1.is_some());
    assert!(walk(steps(&[1], &[0.5, 1.0]), &groups).is_err());
}
