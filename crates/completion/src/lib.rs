//! The completion model.
