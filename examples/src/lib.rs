//! Programs to copy from; each is an example target of this package.
