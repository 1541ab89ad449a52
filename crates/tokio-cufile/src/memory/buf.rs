//! What an operation may take as its memory: sealed, since soundness hangs on the implementation.
//!
//! `Box<[u8]>` is not among them. Moving a box asserts that no other pointer reaches its bytes, so
//! an address taken before the box moves into its operation may not be used after; a `Vec` promises
//! the opposite, and `Vec::from(boxed)` costs nothing.
#![allow(
    unsafe_code,
    reason = "the sealed trait is unsafe: an implementation vouches for addresses that hardware \
              writes to later"
)]

use std::ptr::NonNull;

use super::host::{HostBuffer, HostPart};
use super::range::{EngineId, MemoryRange};
use super::region::Region;
use super::span::Span;
use crate::error::Result;
use crate::stream::Chunk;

/// Memory that a write may take its bytes from. The operation owns it until it is done.
///
/// | you pass | written |
/// |---|---|
/// | [`HostBuffer`] | the whole buffer; `Busy` while a part is out |
/// | [`HostPart`] | the part |
/// | [`DeviceBuffer`](crate::DeviceBuffer), [`DevicePart`](crate::DevicePart) | the same |
/// | [`ForeignMemory`](crate::ForeignMemory) | all of it |
/// | `LentSlice`, with the feature `cudarc` | all of it |
/// | [`Chunk`] | what was read of a stream |
/// | `Vec<u8>` | its length, not its capacity |
/// | `&'static [u8]` | all of it |
///
/// For a `Box<[u8]>` pass `Vec::from(boxed)`, which copies nothing. Sealed.
pub trait IoBuf: sealed::Memory {}

/// Memory that a read may fill. The operation owns it until it is done.
///
/// | you pass | filled |
/// |---|---|
/// | [`HostBuffer`] | the whole buffer; `Busy` while a part is out |
/// | [`HostPart`] | the part |
/// | [`DeviceBuffer`](crate::DeviceBuffer), [`DevicePart`](crate::DevicePart) | the same |
/// | [`ForeignMemory`](crate::ForeignMemory) | all of it |
/// | `LentSlice`, with the feature `cudarc` | all of it, where every bit pattern is a value |
/// | `Vec<u8>` | its length, not its capacity: pass `vec![0; n]` to read `n` bytes |
///
/// Sealed.
pub trait IoBufMut: IoBuf {}

pub(crate) mod sealed {
    use std::sync::Arc;

    use super::{EngineId, Region, Result};
    use crate::compat::DeviceSide;
    use crate::cuda::CudaEvent;

    /// # Safety
    ///
    /// The implementation vouches that after [`prepare`](Self::prepare) the range it returned
    /// stays allocated, initialised and at its address until the value is dropped or next used
    /// through one of its own methods, wherever the value itself is moved meanwhile; that moving
    /// the value does not assert exclusive access to the bytes; and that while the value is owned
    /// and untouched nobody else writes the bytes, nor reads them if the type is `IoBufMut`. For
    /// an `IoBufMut` the bytes may be written through the range.
    ///
    /// The caller owns the value from `prepare` on and leaves it untouched (moves apart) while it
    /// or the hardware uses the range. It reads through the range, and writes only if the type
    /// is `IoBufMut`.
    pub unsafe trait Memory: Send + 'static {
        /// Where the bytes of an operation of `engine` lie.
        ///
        /// # Errors
        ///
        /// `Busy` for a buffer with parts out, `WrongEngine` for memory of another engine.
        fn prepare(&mut self, engine: EngineId) -> Result<Region>;

        /// The device whose memory it is.
        fn device(&self) -> Option<Arc<DeviceSide>> {
            None
        }

        /// Whether cuFile may be given its address.
        fn suits_cufile(&self) -> bool {
            true
        }

        /// What has to be complete before the memory may be touched.
        fn ready(&self) -> Option<Arc<CudaEvent>> {
            None
        }
    }
}

// SAFETY: the mapping lives as long as the buffer and never moves; the buffer holds only its
// address. Slices and parts take a borrow of the owned value, and `prepare_whole` refused if a part
// was out already. The mapping is writable.
unsafe impl sealed::Memory for HostBuffer {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.prepare_whole(engine).map(Region::Host)
    }
}

impl IoBuf for HostBuffer {}
impl IoBufMut for HostBuffer {}

// SAFETY: as for the whole buffer, which the span owns.
unsafe impl sealed::Memory for Span {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        let whole = self.buffer.prepare_whole(engine)?;
        let range = whole.sub(self.start, self.len);
        Ok(Region::Host(range.expect("a span lies inside its buffer")))
    }
}

impl IoBuf for Span {}
impl IoBufMut for Span {}

// SAFETY: as for its span, which is there until the chunk is dropped. Not `IoBufMut`: its bytes
// change for nobody while it lives.
unsafe impl sealed::Memory for Chunk {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.span_mut().prepare(engine)
    }
}

impl IoBuf for Chunk {}

// SAFETY: as for the buffer; the table of parts gives the range to no other part, and the buffer
// makes no slice while this part lives.
unsafe impl sealed::Memory for HostPart {
    fn prepare(&mut self, engine: EngineId) -> Result<Region> {
        self.prepare_part(engine).map(Region::Host)
    }
}

impl IoBuf for HostPart {}
impl IoBufMut for HostPart {}

// SAFETY: the heap block of a Vec stays where it is until a method reallocates it or the Vec is
// dropped; moving a Vec leaves pointers from `as_mut_ptr` valid; the first `len` bytes are
// initialised, writable, and reachable only through the Vec.
unsafe impl sealed::Memory for Vec<u8> {
    fn prepare(&mut self, _engine: EngineId) -> Result<Region> {
        let len = self.len();
        let ptr = NonNull::new(self.as_mut_ptr()).expect("the pointer of a Vec is never null");
        Ok(Region::Host(MemoryRange::new(ptr, len)))
    }
}

impl IoBuf for Vec<u8> {}
impl IoBufMut for Vec<u8> {}

// SAFETY: the bytes live for the whole program, and nobody may write them while a shared reference
// lives, which is for ever. Not `IoBufMut`, hence only read.
unsafe impl sealed::Memory for &'static [u8] {
    fn prepare(&mut self, _engine: EngineId) -> Result<Region> {
        let ptr = NonNull::from(*self).cast();
        Ok(Region::Host(MemoryRange::new(ptr, self.len())))
    }
}

impl IoBuf for &'static [u8] {}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use super::sealed::Memory;
    use super::*;
    use crate::error::ErrorKind;

    fn host(region: Region) -> MemoryRange {
        let Region::Host(range) = region else {
            panic!("host memory lies in the host");
        };
        range
    }

    /// The life of a buffer in an operation: prepared, moved, boxed, written by address, unboxed.
    fn fill_in_flight<B: IoBufMut>(mut buf: B, engine: EngineId, byte: u8) -> B {
        let range = host(buf.prepare(engine).unwrap());
        let boxed: Box<dyn Any + Send> = Box::new(buf);
        let held = [boxed];
        for offset in 0..range.len() {
            // SAFETY: the offset is inside the range, whose owner is held and left alone.
            let target = unsafe { range.as_ptr().add(offset) };
            // SAFETY: as above; an `IoBufMut` may be written.
            unsafe { target.write(byte) };
        }
        let [boxed] = held;
        *boxed.downcast().expect("it was boxed as this type")
    }

    #[test]
    fn a_vec_is_filled_up_to_its_length_wherever_it_moves() {
        let mut vec = Vec::with_capacity(32);
        vec.resize(8, 0_u8);
        let vec = fill_in_flight(vec, EngineId::unique(), 5);
        assert_eq!(vec, [5; 8]);
        assert_eq!(fill_in_flight(Vec::new(), EngineId::unique(), 5), []);
    }

    #[test]
    fn a_buffer_and_its_parts_are_filled_wherever_they_move() {
        let engine = EngineId::unique();
        let buffer = HostBuffer::allocate(engine, 100).unwrap();
        let mut buffer = fill_in_flight(buffer, engine, 1);
        let part = buffer.part(10..20).unwrap();
        assert_eq!(buffer.prepare(engine).unwrap_err().kind(), ErrorKind::Busy);
        drop(fill_in_flight(part, engine, 2));
        let bytes = buffer.as_slice().unwrap();
        assert_eq!(
            (&bytes[..10], &bytes[10..20], &bytes[20..]),
            (&[1; 10][..], &[2; 10][..], &[1; 80][..])
        );
    }

    #[test]
    fn memory_of_another_engine_is_refused() {
        let engine = EngineId::unique();
        let mut buffer = HostBuffer::allocate(engine, 100).unwrap();
        let mut part = buffer.part(0..1).unwrap();
        let other = EngineId::unique();
        assert_eq!(
            part.prepare(other).unwrap_err().kind(),
            ErrorKind::WrongEngine
        );
        assert_eq!(
            buffer.prepare(other).unwrap_err().kind(),
            ErrorKind::WrongEngine
        );
    }

    #[test]
    fn a_static_slice_is_read_in_place() {
        let mut source: &'static [u8] = b"static";
        let range = host(source.prepare(EngineId::unique()).unwrap());
        assert_eq!(
            (range.address(), range.len()),
            (source.as_ptr().addr(), source.len())
        );
    }
}
