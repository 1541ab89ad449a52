//! Slices, streams and events of cudarc's in operations of the engine.
//!
//! Failure: bytes in the wrong place; a slice whose `memset` comes after the bytes of the file; one
//! that is freed while a copy uses it, or by a call into the driver on a task's thread; a context
//! that is not the engine's.
//! Mechanism: cudarc's calls return before the device has done what they ask for, and a slice waits
//! only for what cudarc knows of.
//! Method: the simulator holds what is asked for, as long as the test wants. A control does without
//! the wait.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DeviceRepr, ValidAsZeroBits};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use tokio_cufile::{
    CudaEvent, Engine, EngineBuilder, ErrorKind, IoBuf, IoBufMut, LentSlice, PointerClass,
    VendorCode,
};
use tokio_cufile_tests::bench::block_on;
use tokio_cufile_tests::life::{poll_once, until};
use tokio_cufile_tests::rig::{Rig, Way, each_way};
use tokio_cufile_tests::sim::Lease;
use tokio_cufile_tests::{Sim, pattern};

const BLOCK: usize = 4096;
const LEN: usize = 5 * BLOCK + 76;

// Whatever a file holds is a number; not every byte is a `bool`, nor every word a `char`.
assert_impl_all!(LentSlice<f32>: IoBufMut, Send);
assert_impl_all!(LentSlice<[u64; 3]>: IoBufMut, Send);
assert_impl_all!(LentSlice<bool>: IoBuf, Send);
assert_not_impl_any!(LentSlice<bool>: IoBufMut);
assert_not_impl_any!(LentSlice<[bool; 2]>: IoBufMut);
assert_not_impl_any!(LentSlice<char>: IoBufMut);

fn engine() -> EngineBuilder {
    let builder = Engine::builder().num_threads(1).task_size(BLOCK);
    builder.bounce_buffer_size(BLOCK).budget(1 << 20)
}

fn stream(device: &Lease) -> Arc<CudaStream> {
    let context = CudaContext::new(usize::try_from(device.ordinal).unwrap()).unwrap();
    context.new_stream().unwrap()
}

fn address<T>(slice: &CudaSlice<T>) -> u64 {
    slice.device_ptr(slice.stream()).0
}

fn content<T>(device: &Lease, slice: &CudaSlice<T>) -> Vec<u8> {
    let user = device.user();
    user.content(address(slice), slice.num_bytes())
}

/// Has an operation done that came later and waits for nothing: what could go on before has done so.
fn others_go_on(rig: &Rig, stream: &CudaStream) {
    let idle = stream.context().new_stream().unwrap();
    let event = block_on(CudaEvent::of_stream(&rig.engine, &idle)).unwrap();
    let read = rig.file.read_exact_at(rig.buffer(BLOCK), 0);
    drop(block_on(read.after(Arc::new(event))).unwrap());
}

fn there_and_back<T>(rig: &Rig, stream: &Arc<CudaStream>, device: &Lease)
where
    T: DeviceRepr + ValidAsZeroBits,
    LentSlice<T>: IoBufMut,
{
    let slice = stream.alloc_zeros::<T>(LEN / size_of::<T>()).unwrap();
    let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
    let done = block_on(rig.file.read_exact_at(lent, 0)).unwrap();
    assert_eq!(done.bytes, LEN);
    let slice = done.buf.into_slice();
    pattern::assert_same(&content(device, &slice), &rig.content);
    let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
    let done = block_on(rig.file.write_all_at(lent, 100)).unwrap();
    let written = std::fs::read(rig.path()).unwrap();
    pattern::assert_same(&written[100..], &rig.content);
    std::fs::write(rig.path(), &rig.content).unwrap();
    drop(done);
}

#[test]
fn slices_are_read_into_and_written_from() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), LEN, |_, rig| {
        let stream = stream(&rig.device);
        there_and_back::<u8>(&rig, &stream, &rig.device);
        there_and_back::<f32>(&rig, &stream, &rig.device);
        drop(stream);
        rig.end();
    });
}

#[test]
fn a_slice_goes_by_the_device_that_it_is_on() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let (rig, other) = (Rig::new(sim, Way::Ring, engine(), LEN), sim.lease());
    there_and_back::<u8>(&rig, &stream(&other), &other);
    assert_eq!(rig.device.stats().bytes_to_device, 0);
    assert_eq!(other.stats().bytes_to_device, LEN as u64);
    rig.end();
    other.assert_all_gone();
}

#[test]
fn a_pending_memset_does_not_come_after_the_bytes() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let stream = stream(&rig.device);
        let copies = rig.device.calls("cuMemcpyHtoDAsync_v2");
        rig.device.fault("@fill:never");
        let slice = stream.alloc_zeros::<u8>(BLOCK).unwrap();
        let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
        let mut read = rig.file.read_exact_at(lent, 0).start();
        others_go_on(&rig, &stream);
        assert!(poll_once(&mut read).is_pending());
        assert_eq!(rig.device.calls("cuMemcpyHtoDAsync_v2") - copies, 1);
        rig.device.clear();
        let slice = block_on(read).unwrap().buf.into_slice();
        stream.synchronize().unwrap();
        pattern::assert_same(&content(&rig.device, &slice), &rig.content);
        drop((slice, stream));
        rig.end();
    });
}

/// What the wait is for: the same slice, lent without it.
#[test]
fn control_without_the_wait_the_memset_comes_last() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Pool, engine(), BLOCK);
    let stream = stream(&rig.device);
    let mut slice = stream.alloc_zeros::<u8>(BLOCK).unwrap();
    // Else the copy would come before the memory itself.
    stream.synchronize().unwrap();
    rig.device.fault("@fill:never");
    stream.memset_zeros(&mut slice).unwrap();
    let user = rig.device.user();
    let lent = user
        .lend(&rig.engine, address(&slice), BLOCK, slice)
        .unwrap();
    assert_eq!(lent.class(), PointerClass::Pool);
    let done = block_on(rig.file.read_exact_at(lent, 0)).unwrap();
    rig.device.clear();
    stream.synchronize().unwrap();
    let slice = done.buf.into_owner();
    assert_eq!(content(&rig.device, &slice), [0; BLOCK]);
    drop((slice, stream));
    rig.end();
}

#[test]
fn work_in_other_streams_is_waited_for() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Pool, engine(), BLOCK);
    let own = stream(&rig.device);
    let other = own.fork().unwrap();
    let mut slice = own.alloc_zeros::<u8>(BLOCK).unwrap();
    own.synchronize().unwrap();
    rig.device.fault("@fill:never");
    other.memset_zeros(&mut slice).unwrap();
    let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
    let mut read = rig.file.read_exact_at(lent, 0).start();
    others_go_on(&rig, &own);
    assert!(poll_once(&mut read).is_pending());
    rig.device.clear();
    let slice = block_on(read).unwrap().buf.into_slice();
    other.synchronize().unwrap();
    pattern::assert_same(&content(&rig.device, &slice), &rig.content);
    drop((slice, other, own));
    rig.end();
}

#[test]
fn a_slice_dropped_in_flight_is_freed_after_the_copy() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let stream = stream(&rig.device);
        let slice = stream.alloc_zeros::<u8>(BLOCK).unwrap();
        let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
        let frees = rig.device.calls("cuMemFreeAsync");
        rig.device.fault("@htod:never");
        let read = rig.file.read_at(lent, 0).start();
        until(|| rig.device.stats().faults_fired == 1);
        drop(read);
        assert_eq!(rig.device.calls("cuMemFreeAsync"), frees);
        rig.device.clear();
        until(|| rig.device.calls("cuMemFreeAsync") == frees + 1);
        drop(stream);
        rig.assert_idle();
        // No copy came late, and nothing is left.
        rig.end();
    });
}

/// Every call hangs, so a drop that returns has made none.
#[test]
fn dropping_it_calls_nothing_on_the_thread_that_drops() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Ring, engine(), BLOCK);
    let stream = stream(&rig.device);
    let lend = || LentSlice::new(&rig.engine, stream.alloc_zeros::<u8>(BLOCK).unwrap());
    let lent = block_on(lend()).unwrap();
    let read = rig.file.read_at(block_on(lend()).unwrap(), 0);
    let never_lent = lend();
    stream.synchronize().unwrap();
    rig.device.fault("*:never");
    drop(lent);
    drop(read);
    drop(never_lent);
    rig.device.clear();
    until(|| rig.device.stats().live_allocations == 0);
    drop(stream);
    rig.end();
}

#[test]
fn an_error_gives_the_slice_back() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let stream = stream(&rig.device);
        let slice = stream.alloc_zeros::<u32>(BLOCK).unwrap();
        let lent = block_on(LentSlice::new(&rig.engine, slice)).unwrap();
        let failed = block_on(rig.file.read_exact_at(lent, 0)).unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(failed.bytes_done(), BLOCK);
        let slice = failed.into_parts().1.expect("it comes back").into_slice();
        pattern::assert_same(&content(&rig.device, &slice)[..BLOCK], &rig.content);
        drop((slice, stream));
        rig.end();
    });
}

/// With such an error kept, cudarc makes no stream wait for another, and says so to whoever asks.
#[test]
fn an_error_that_cudarc_kept_is_told_before_the_slice_is_used() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Ring, engine(), BLOCK);
    let stream = stream(&rig.device);
    let [first, second, third] = [(); 3].map(|()| stream.alloc_zeros::<u8>(BLOCK).unwrap());
    rig.device
        .fault("cuMemFreeAsync:act-fail=NOT_SUPPORTED,times=1");
    drop(first);
    let error = block_on(LentSlice::new(&rig.engine, second)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceFailed, "{error}");
    assert_eq!(error.vendor_code(), Some(VendorCode::Cuda(801)));
    assert_eq!(error.device(), Some(rig.device.ordinal));
    // It was kept once.
    let lent = block_on(LentSlice::new(&rig.engine, third)).unwrap();
    let done = block_on(rig.file.read_exact_at(lent, 0)).unwrap();
    let slice = done.buf.into_slice();
    pattern::assert_same(&content(&rig.device, &slice), &rig.content);
    drop((slice, stream));
    rig.end();
}

#[test]
fn an_empty_slice_moves_no_byte() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Ring, engine(), BLOCK);
    let stream = stream(&rig.device);
    let slice = stream.alloc_zeros::<u8>(1).unwrap();
    // SAFETY: nothing is at no bytes.
    let empty = unsafe { stream.upgrade_device_ptr::<u8>(address(&slice), 0) };
    let lent = block_on(LentSlice::new(&rig.engine, empty)).unwrap();
    let done = block_on(rig.file.read_at(lent, 0)).unwrap();
    assert_eq!(done.bytes, 0);
    // It would free what it does not own.
    assert_eq!(done.buf.into_slice().leak(), address(&slice));
    drop((slice, stream));
    rig.end();
}

#[test]
fn an_operation_waits_for_a_stream_or_an_event_of_cudarcs() {
    let Some(sim) = Sim::need() else {
        return;
    };
    each_way(sim, &engine(), BLOCK, |_, rig| {
        let stream = stream(&rig.device);
        let mut slice = stream.alloc_zeros::<u8>(BLOCK).unwrap();
        for by_event in [false, true] {
            stream.synchronize().unwrap();
            rig.device.fault("@fill:never");
            stream.memset_zeros(&mut slice).unwrap();
            let recorded = match by_event {
                false => CudaEvent::of_stream(&rig.engine, &stream),
                true => CudaEvent::of_event(&rig.engine, stream.record_event(None).unwrap()),
            };
            let event = Arc::new(block_on(recorded).unwrap());
            let mut read = rig.file.read_at(vec![0; BLOCK], 0).after(event).start();
            others_go_on(&rig, &stream);
            assert!(poll_once(&mut read).is_pending());
            rig.device.clear();
            pattern::assert_same(&block_on(read).unwrap().buf, &rig.content);
        }
        drop((slice, stream));
        rig.end();
    });
}

#[test]
fn the_per_thread_stream_is_refused() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let rig = Rig::new(sim, Way::Ring, engine(), BLOCK);
    let stream = stream(&rig.device).context().per_thread_stream();
    let error = block_on(CudaEvent::of_stream(&rig.engine, &stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    rig.end();
}
