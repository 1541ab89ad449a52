//! Memory of other owners: parts of the harness's own buffers, given to the library by address, with
//! the part as what keeps it alive. So it is fenced, and watched after it was given back, as all other.
//!
//! Unsafe, because memory of other owners is known by its address alone.
#![allow(unsafe_code, reason = "vouches for memory that a part keeps alive")]

use tokio_cufile::{Engine, Error, ForeignMemory, IoBufMut};

use super::arena::{Ground, Sizes};

/// Of host memory that the driver knows.
pub(super) const SIZES: Sizes = &[(8 << 10, 96), (40 << 10, 24), (256 << 10, 4)];

/// What an operation is given: a part, or a value that has one inside.
pub(super) trait Carries<P>: IoBufMut {
    fn into_part(self) -> P;
}

impl<P: IoBufMut> Carries<P> for P {
    fn into_part(self) -> P {
        self
    }
}

impl<P: Send + 'static> Carries<P> for ForeignMemory<P> {
    fn into_part(self) -> P {
        self.into_owner()
    }
}

/// The bytes of a part as memory of its owner's. On an error an engine thread drops the part.
pub(super) async fn lend<G: Ground>(
    engine: &Engine,
    device: u32,
    mut part: G::Part,
) -> Result<ForeignMemory<G::Part>, Error> {
    let (address, len) = (G::address(&mut part), G::range(&part).len());
    // SAFETY: the part keeps the bytes allocated, and for itself alone, wherever it is moved: nobody
    // has it but the value, whose owner it is. A buffer's host memory is initialised.
    let asked = unsafe { ForeignMemory::new(engine, device, address, len, part) };
    Box::pin(asked).await
}
