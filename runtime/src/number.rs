//! The numbers a forward pass can be computed in.

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
