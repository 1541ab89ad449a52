//! Numbers and pointers of the libraries as types of their own.
//!
//! Unsafe, because a handle is a pointer, and pointers do not cross threads by themselves.
#![allow(unsafe_code, reason = "handles are pointers that may cross threads")]

/// Opaque pointers.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// A raw handle: copying it copies no ownership, and nothing is destroyed when it goes.
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(*mut std::ffi::c_void);

        impl $name {
            /// The null handle.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// A handle that came from the driver by another way.
            #[must_use]
            pub const fn from_raw(raw: *mut std::ffi::c_void) -> Self {
                Self(raw)
            }

            /// The handle as the driver has it.
            #[must_use]
            pub const fn as_raw(self) -> *mut std::ffi::c_void {
                self.0
            }

            /// Whether this is the null handle.
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: only the driver looks behind the pointer, and its calls take handles from every
        // thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; the handle itself is an immutable address.
        unsafe impl Sync for $name {}
    )* };
}

/// Numbers with names.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($type:ty) { $($(#[$value_doc:meta])* $value:ident = $number:literal,)* })*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $type);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*
        }
    )* };
}

/// Sets of bits with names. A bit without a name is kept, and printed as a number.
macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:literal, $text:literal;)* })*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// No bit.
            pub const NONE: Self = Self(0);

            $($(#[$value_doc])* pub const $value: Self = Self($number);)*

            /// Whether all bits of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The names of the bits that are set and have one.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                const NAMES: &[(u32, &str)] = &[$(($number, $text)),*];
                NAMES.iter().filter(move |(bit, _)| self.0 & bit == *bit).map(|(_, name)| *name)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                const NAMED: u32 = 0 $(| $number)*;
                let mut first = true;
                let mut part = |f: &mut std::fmt::Formatter<'_>, part: std::fmt::Arguments<'_>| {
                    let comma = if std::mem::take(&mut first) { "" } else { ", " };
                    write!(f, "{comma}{part}")
                };
                for name in self.names() {
                    part(f, format_args!("{name}"))?;
                }
                match self.0 & !NAMED {
                    0 if self.0 == 0 => f.write_str("none"),
                    0 => Ok(()),
                    unnamed => part(f, format_args!("{unnamed:#x}")),
                }
            }
        }
    )* };
}

pub(crate) use {bits, handles, integers};
