//! The numbers a forward pass can be computed in.

use bytemuck::Pod;
use half::{bf16, f16};
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// f32, or f64 for oracles.
pub trait Number:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Sub<Output = Self>
    + 'static
{
    /// The number nearest to `value`.
    fn from_f64(value: f64) -> Self;
    /// `value`, exactly.
    fn from_f32(value: f32) -> Self;
    /// The f32 nearest to this number.
    fn to_f32(self) -> f32;
    /// The square root.
    fn sqrt(self) -> Self;
    /// e to the power of this number.
    fn exp(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sine and cosine.
    fn sin_cos(self) -> (Self, Self);
}

macro_rules! number {
    ($float:ty) => {
        impl Number for $float {
            fn from_f64(value: f64) -> Self {
                value as $float
            }
            fn from_f32(value: f32) -> Self {
                value as $float
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn sqrt(self) -> Self {
                <$float>::sqrt(self)
            }
            fn exp(self) -> Self {
                <$float>::exp(self)
            }
            fn tanh(self) -> Self {
                <$float>::tanh(self)
            }
            fn sin_cos(self) -> (Self, Self) {
                <$float>::sin_cos(self)
            }
        }
    };
}

number!(f32);
number!(f64);

/// What numbers `N` are kept in between passes: keys and values of a cache.
pub trait Kept<N>: Pod + Debug + Default + Send + Sync {
    /// The nearest that can be kept.
    fn keep(number: N) -> Self;
    /// What is kept, exactly.
    fn number(self) -> N;
}

impl Kept<f32> for f32 {
    fn keep(number: f32) -> f32 {
        number
    }
    fn number(self) -> f32 {
        self
    }
}

impl Kept<f64> for f64 {
    fn keep(number: f64) -> f64 {
        number
    }
    fn number(self) -> f64 {
        self
    }
}

impl<N: Number> Kept<N> for f16 {
    fn keep(number: N) -> f16 {
        f16::from_f32(number.to_f32())
    }
    fn number(self) -> N {
        N::from_f32(self.to_f32())
    }
}

impl<N: Number> Kept<N> for bf16 {
    fn keep(number: N) -> bf16 {
        bf16::from_f32(number.to_f32())
    }
    fn number(self) -> N {
        N::from_f32(self.to_f32())
    }
}
