//! What the project's own commands and its tests share.

pub mod again;
pub mod place;
pub mod simulator;
