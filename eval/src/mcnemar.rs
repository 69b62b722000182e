//! McNemar's test for two answerers of the same questions.

use num_bigint::BigUint;
use num_rational::Ratio;
use num_traits::{One, ToPrimitive};

/// The exact two-sided p: if both answerers were equally good, each question that only one of them
/// got right would be a fair coin's; p is the probability that the coins fall at least as unevenly
/// as they did. Computed in whole numbers, for any counts; 1 if there are no such questions.
pub fn exact_p(only_a: u64, only_b: u64) -> f64 {
    let (coins, fewer) = (only_a + only_b, only_a.min(only_b));
    if only_a == only_b {
        // The two tails meet, and would count the middle twice.
        return 1.0;
    }
    let mut ways = BigUint::one();
    let mut tail = BigUint::one();
    for heads in 1..=fewer {
        ways = ways * (coins - heads + 1) / heads;
        tail += &ways;
    }
    let all = BigUint::one() << (coins - 1);
    Ratio::new_raw(tail, all).to_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::exact_p;

    /// Each by hand: twice the sum of binomials over a power of two.
    #[test]
    fn by_hand() {
        for (only_a, only_b, p) in [
            (0, 0, 1.0),
            (1, 0, 1.0),            // 2·1/2
            (0, 2, 0.5),            // 2·1/4
            (5, 0, 0.0625),         // 2·1/32
            (1, 5, 0.21875),        // 2·(1+6)/64
            (2, 8, 0.109375),       // 2·(1+10+45)/1024
            (10, 3, 0.09228515625), // 2·(1+13+78+286)/8192
            (7, 7, 1.0),
            (4, 3, 1.0), // 2·(1+7+21+35)/128
        ] {
            assert_eq!(exact_p(only_a, only_b), p, "{only_a}, {only_b}");
            assert_eq!(exact_p(only_b, only_a), p, "{only_b}, {only_a}");
        }
    }

    #[test]
    fn large_counts_stay_exact() {
        assert_eq!(exact_p(0, 1000), 2f64.powi(-999));
        // Near the normal distribution's 0.0455 at two standard deviations (continuity corrected).
        let p = exact_p(4900, 5100);
        assert!((0.045..0.048).contains(&p), "{p}");
        // So small that no f64 holds it.
        assert_eq!(exact_p(0, 5000), 0.0);
    }

    #[test]
    fn more_uneven_is_less_likely() {
        for coins in 1..60 {
            let all: Vec<f64> = (0..=coins / 2).map(|few| exact_p(few, coins - few)).collect();
            assert!(all.is_sorted() && all.iter().all(|p| (0.0..=1.0).contains(p)), "{coins}");
        }
    }
}
