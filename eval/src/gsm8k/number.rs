//! The number that an answer ends with, exactly: `$1,000.00` is 1000, and `3/4` is `0.75`.
//!
//! Where the number is said: behind the last `####`, else in the last `\boxed{…}`, else behind the
//! last "answer is" (or "answer:"), else it is the last number of all. Behind such a mark the first
//! number counts, but on a line with `=` the first one behind the last `=`.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;
use regex::Regex;
use std::str::FromStr;
use std::sync::LazyLock;

/// The number that an answer ends with.
pub fn last(answer: &str) -> Option<BigRational> {
    static MARK: LazyLock<Regex> =
        LazyLock::new(|| regex(r"(?i)\banswer(?:\s+is|\s+equals)?\b\s*[:=]?"));
    let text = plain(answer);
    let behind_hashes = || said(text.rsplit_once("####")?.1);
    let in_box = || said(last_boxed(&text)?);
    let behind_mark = || said(&text[MARK.find_iter(&text).last()?.end()..]);
    let anywhere = || Some(numbers(&text).pop()?.value);
    behind_hashes().or_else(in_box).or_else(behind_mark).or_else(anywhere)
}

/// The number that a text is, with nothing else around it but `$` or `%`.
pub fn whole(text: &str) -> Option<BigRational> {
    let text = plain(text.trim());
    let mut found = numbers(&text);
    let number = found.pop().filter(|_| found.is_empty())?;
    (number.start == 0 && number.end == text.len()).then_some(number.value)
}

/// The number that is said at the beginning of a text.
fn said(text: &str) -> Option<BigRational> {
    let line = text.lines().find(|line| !numbers(line).is_empty())?;
    let behind_equals = line.rsplit_once('=').map(|(_, behind)| numbers(behind));
    let found = behind_equals.filter(|found| !found.is_empty()).unwrap_or_else(|| numbers(line));
    found.into_iter().next().map(|found| found.value)
}

/// The text with LaTeX, markdown and unusual marks written as one types them.
fn plain(text: &str) -> String {
    static FRACTION: LazyLock<Regex> =
        LazyLock::new(|| regex(r"(-?)\\[dt]?frac\s*\{\s*([-\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}"));
    static GROUPED: LazyLock<Regex> =
        LazyLock::new(|| regex("(\\d)[\u{a0}\u{2009}\u{202f}](\\d{3})\\b"));
    let text = text
        .replace(['\u{2212}', '\u{2013}'], "-")
        .replace("{,}", ",")
        .replace("\\,", "")
        .replace("\\!", "")
        .replace("\\$", "$")
        .replace("\\%", "%")
        .replace(['*', '`'], "");
    // With a space in front: what stands there may be the whole of a mixed number.
    let text = FRACTION.replace_all(&text, " $1$2/$3");
    // Twice: the groups of 1 000 000 share their digits' ends.
    let text = GROUPED.replace_all(&text, "$1$2");
    GROUPED.replace_all(&text, "$1$2").into_owned()
}

/// What stands in the last `\boxed{…}`, braces inside balanced.
fn last_boxed(text: &str) -> Option<&str> {
    let (_, behind) = text.rsplit_once("\\boxed{")?;
    let mut open = 1;
    let end = behind.char_indices().find(|(_, character)| {
        open += match character {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        open == 0
    })?;
    Some(&behind[..end.0])
}

/// A number and where it stands, sign and currency included.
struct Found {
    value: BigRational,
    start: usize,
    end: usize,
}

/// All numbers of a text in their order.
fn numbers(text: &str) -> Vec<Found> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        regex(concat!(
            r"(?<sign>-)?(?:[$€£]\s?(?<inner>-)?)?(?:",
            r"(?<whole>\d+)\s+(?<top>\d+)\s?/\s?(?<bottom>\d+)",
            r"|(?<first>\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s?/\s?[$€£]?(?<second>\d[\d,]*(?:\.\d+)?))?",
            r")(?:%|\s(?<scale>thousand|million|billion)\b)?",
        ))
    });
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(captures) = NUMBER.captures_at(text, position) {
        let all = captures.get_match();
        let (start, end) = (all.start(), all.end());
        position = end;
        let group = |name: &str| captures.name(name).map(|group| group.as_str());
        let before = text[..start].chars().next_back();
        if group("sign").is_none() && before.is_some_and(|c| c.is_alphabetic() || c == '_') {
            // The 2 of x2 or H2O is a name's.
            continue;
        }
        // In 10-3 the stroke is no sign.
        let is_sign = !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, ')' | '%'));
        let negative = (group("sign").is_some() && is_sign) ^ group("inner").is_some();
        let mut values = match (group("whole"), group("first")) {
            (Some(whole), _) => vec![decimal(whole) + quotient(group("top"), group("bottom"))],
            (None, Some(first)) if !is_grouped(first) => {
                // 1,2,3 is a list and no number.
                first.split(',').filter(|part| !part.is_empty()).map(decimal).collect()
            }
            (None, first) => vec![quotient(first, group("second"))],
        };
        let scale = match group("scale") {
            Some("thousand") => 1_000,
            Some("million") => 1_000_000,
            Some(_) => 1_000_000_000,
            None => 1,
        };
        for value in &mut values {
            *value *= BigInt::from(if negative { -scale } else { scale });
        }
        // The comma of "42, and" is the sentence's.
        let end = start + all.as_str().trim_end_matches(',').len();
        found.extend(values.into_iter().map(|value| Found { value, start, end }));
    }
    found
}

/// Whether commas, if any, part thousands: 1,234,567.
fn is_grouped(number: &str) -> bool {
    let integer = number.trim_end_matches(',').split('.').next().unwrap_or(number);
    let mut groups = integer.split(',');
    let first = groups.next().unwrap_or(integer);
    let rest: Vec<&str> = groups.collect();
    rest.is_empty() || (first.len() <= 3 && rest.iter().all(|group| group.len() == 3))
}

/// `top / bottom`; without a bottom, or with one of 0, the top.
fn quotient(top: Option<&str>, bottom: Option<&str>) -> BigRational {
    let top = decimal(top.unwrap_or("0"));
    match bottom.map(decimal) {
        Some(bottom) if !bottom.is_zero() => top / bottom,
        _ => top,
    }
}

/// The value of digits with at most one point, commas passed over.
fn decimal(digits: &str) -> BigRational {
    let digits = digits.replace(',', "");
    let (integer, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let all =
        BigInt::from_str(&format!("0{integer}{fraction}")).expect("the pattern admits digits only");
    BigRational::new(all, BigInt::from(10).pow(fraction.len() as u32))
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is well formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(top: i64, bottom: i64) -> BigRational {
        BigRational::new(top.into(), bottom.into())
    }

    /// Answers as models write them, and the number they mean.
    #[test]
    fn written_out_cases() {
        for (answer, top, bottom) in [
            // Plain, and with marks around.
            ("42", 42, 1),
            ("The answer is 42.", 42, 1),
            ("the answer is: 42", 42, 1),
            ("Answer: **42**", 42, 1),
            ("**Answer:** 42 apples", 42, 1),
            ("So she has 18 eggs left.\n#### 18", 18, 1),
            ("#### 18 eggs in 2 baskets", 18, 1),
            ("The answer is `7`", 7, 1),
            // Money, thousands, decimals.
            ("The total is $1,000.00", 1000, 1),
            ("$1,000.00", 1000, 1),
            ("The answer is $1,234,567.", 1_234_567, 1),
            ("The answer is \\$12.50.", 25, 2),
            ("The answer is €3", 3, 1),
            ("She paid 1{,}250 in all", 1250, 1),
            ("It weighs 1\u{202f}250\u{202f}000 grams", 1_250_000, 1),
            ("That is .5 of it", 1, 2),
            ("12.0", 12, 1),
            ("The answer is 2.5 million dollars", 2_500_000, 1),
            ("The answer is 3 thousand", 3000, 1),
            // Fractions.
            ("3/4", 3, 4),
            ("The answer is 3/4 of a cup.", 3, 4),
            ("The answer is 0.75", 3, 4),
            ("He ate 1 1/2 pizzas", 3, 2),
            ("The answer is \\frac{3}{4}", 3, 4),
            ("The answer is $-\\frac{3}{4}$", -3, 4),
            ("\\boxed{1\\dfrac{1}{2}}", 3, 2),
            ("6/3", 2, 1),
            ("The answer is 5/0", 5, 1),
            // Units and per cent behind.
            ("It takes 18 hours.", 18, 1),
            ("The answer is 18km/h.", 18, 1),
            ("The answer is 50%.", 50, 1),
            ("The answer is 50\\%", 50, 1),
            ("It ends at the 3rd try", 3, 1),
            // Negative.
            ("The answer is -5", -5, 1),
            ("The answer is \u{2212}5 degrees", -5, 1),
            ("It is -$5 then", -5, 1),
            ("It is $-5 then", -5, 1),
            ("The answer is 10-3", 10, 1),
            ("10-3", 3, 1),
            ("(4)-2", 2, 1),
            // LaTeX.
            ("So \\boxed{72} clips, in 2 months.", 72, 1),
            ("\\boxed{12} no, \\boxed{\\text{about } 13}", 13, 1),
            ("$$\\boxed{\\$1,500}$$", 1500, 1),
            ("\\[ x = 6 \\cdot 7 = \\boxed{42} \\]", 42, 1),
            // Several numbers.
            ("3 + 4 = 7 apples. The answer is 7. It took 2 steps.", 7, 1),
            ("The answer is 6 * 7 = 42.", 42, 1),
            ("The answer is 42, which is 3 more than 39.", 42, 1),
            ("The answer is 5.\nWait, the answer is 6.", 6, 1),
            ("The answer is\n\n9", 9, 1),
            ("First 3, then 4, and last 5", 5, 1),
            ("The final answer is 1,2,3", 1, 1),
            ("Our answer follows. 8 eggs cost $16", 8, 1),
            ("He has 4 of them (see step 2), x2 y_3", 2, 1),
            ("Total = 5 + 6 = 11 dollars", 11, 1),
            ("123456789012345678", 123_456_789_012_345_678, 1),
        ] {
            assert_eq!(last(answer), Some(ratio(top, bottom)), "{answer}");
        }
    }

    #[test]
    fn no_number() {
        for answer in ["", "none", "x2", "The answer is unknown.", "#### ", "\\boxed{}"] {
            assert_eq!(last(answer), None, "{answer}");
        }
    }

    #[test]
    fn exact_where_floats_are_not() {
        assert_ne!(last("0.30000000000000004"), last("0.3"));
        assert_ne!(last("9007199254740993"), last("9007199254740992"));
        assert_eq!(last("0.10"), last("1/10"));
        assert_ne!(last("0.3333333333"), last("1/3"));
    }

    #[test]
    fn a_whole_text() {
        assert_eq!(whole(" 1,000 "), Some(ratio(1000, 1)));
        assert_eq!(whole("-3"), Some(ratio(-3, 1)));
        assert_eq!(whole("$5"), Some(ratio(5, 1)));
        assert_eq!(whole("25%"), Some(ratio(25, 1)));
        for text in ["", "5 eggs", "1 2", "about 5", "1,2"] {
            assert_eq!(whole(text), None, "{text}");
        }
    }
}
