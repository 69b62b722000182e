//! A Hub, a proxy or a mirror that means no good, or is out of its mind: nothing of what it says leads
//! outside the cache, into a message, or nowhere for ever.

mod answers;
mod lists;
mod machine;
mod uploads;
