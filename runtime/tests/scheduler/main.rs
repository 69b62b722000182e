//! Many answers on one engine: the same bytes as alone, faults and leavers that touch nobody else.

mod company;
mod disk;
mod faults;
mod hearing;
mod leaving;
mod prefix;
mod speculation;
#[path = "../model/support/mod.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod support;
