//! Tables of a library's functions, filled at run time.
//!
//! Unsafe, because the types of the functions are declared here and not checked by anyone: an
//! address becomes a function of that type. Each library's file of symbols re-allows it for the
//! macro.

/// The name of a symbol as the loader takes it.
macro_rules! c_name {
    ($symbol:ident) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => panic!("an identifier has no zero byte"),
            }
        }
    };
}

/// Makes `Symbols`, the functions of one library, and the lists of their names. `id` is the field
/// whose address tells libraries apart; `A or B` is `B` where the library has no `A`.
macro_rules! table {
    (
        id $id:ident;
        required {
            $($field:ident = $symbol:ident $(or $older:ident)? ($($type:ty),*) -> $ret:ty;)*
        }
        optional {
            $($opt_field:ident = $opt_symbol:ident ($($opt_type:ty),*) -> $opt_ret:ty;)*
        }
    ) => {
        /// Symbols without which no table of calls is made.
        pub const REQUIRED_SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];

        /// Symbols that the library may lack: the calls that need them then end as unsupported.
        pub const OPTIONAL_SYMBOLS: &[&str] = &[$(stringify!($opt_symbol)),*];

        #[derive(Clone, Copy)]
        pub(crate) struct Symbols {
            $(pub(crate) $field: unsafe extern "C" fn($($type),*) -> $ret,)*
            $(pub(crate) $opt_field: Option<unsafe extern "C" fn($($opt_type),*) -> $opt_ret>,)*
        }

        impl Symbols {
            /// Looks up all symbols, and calls none.
            pub(crate) fn find(
                library: &crate::load::Library,
            ) -> Result<(Self, std::path::PathBuf), crate::load::LoadError> {
                let mut any = None;
                let mut look = |name: &std::ffi::CStr| {
                    let address = library.symbol(name);
                    any = any.or(address);
                    address
                };
                let symbols = Self {
                    $($field: {
                        let found = look($crate::table::c_name!($symbol));
                        $(let found = found.or_else(|| look($crate::table::c_name!($older)));)?
                        let Some(address) = found else {
                            return Err(crate::load::LoadError::MissingSymbol {
                                library: library.path(any),
                                symbol: stringify!($symbol),
                            });
                        };
                        // SAFETY: the address is of the function of this name, whose type is
                        // declared in the table as the library's documentation has it; a function
                        // pointer is as large as an address.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($type),*) -> $ret,
                            >(address)
                        }
                    },)*
                    $($opt_field: look($crate::table::c_name!($opt_symbol)).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($opt_type),*) -> $opt_ret,
                            >(address)
                        }
                    }),)*
                };
                Ok((symbols, library.path(any)))
            }

            /// The same number for the same library, however it was named. None is ever unloaded,
            /// so no other gets it.
            pub(crate) fn id(&self) -> usize {
                (self.$id as *const ()).addr()
            }

            /// A table without a library, whose functions tell which of them was called: see
            /// [`Stub`](crate::table::Stub).
            #[cfg(test)]
            pub(super) fn telling_their_places() -> Self {
                use crate::table::Stub;
                Self {
                    $($field: {
                        extern "C" fn stub($(_: $type),*) -> $ret {
                            <$ret>::of(stringify!($symbol))
                        }
                        stub
                    },)*
                    $($opt_field: {
                        extern "C" fn stub($(_: $opt_type),*) -> $opt_ret {
                            <$opt_ret>::of(stringify!($opt_symbol))
                        }
                        Some(stub)
                    },)*
                }
            }

            /// The optional symbols that are not there.
            pub(crate) fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$opt_field.is_none() {
                    missing.push(stringify!($opt_symbol));
                })*
                missing
            }
        }
    };
}

pub(crate) use {c_name, table};

/// What the function of a test's table returns, by its name.
#[cfg(test)]
pub(crate) trait Stub {
    fn of(symbol: &'static str) -> Self;
}
