//! Failure: a future that cannot be spawned, moved to another thread, or kept in a struct.
//! Mechanism: one field that is not `Send`, or a borrow, spreads through every type above it.
//! Method: assertions at compile time. The buffers must not be `Clone`: two owners of the same
//! bytes would be two writers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;
use std::future::Future;

use static_assertions::assert_not_impl_any;
use tokio_cufile::{
    AsyncCuFile, CancelHandle, CuFileInfo, CudaEvent, DeviceBuffer, DevicePart, Done, Engine,
    Enqueue, Enqueued, Error, ForeignMemory, HostBuffer, HostPart, OpError, Receipt, Request,
    ShutdownReport, Staged, Transfer, Written,
};

const fn can_be_sent<T: Send + 'static>() {}
const fn can_be_shared<T: Send + Sync + 'static>() {}
const fn can_be_printed<T: Debug>() {}
const fn is_unpin<T: Unpin>() {}

fn can_be_spawned<F: Future + Send + 'static>(_: &F) {}

const _: () = {
    can_be_sent::<Transfer<HostBuffer>>();
    can_be_sent::<Transfer<HostPart>>();
    can_be_sent::<Transfer<Vec<u8>>>();
    can_be_sent::<Transfer<&'static [u8]>>();
    can_be_sent::<Request<AsyncCuFile>>();
    can_be_sent::<Request<()>>();
    can_be_sent::<Staged<HostPart>>();
    can_be_sent::<Written>();
    can_be_sent::<Done<HostPart>>();
    can_be_sent::<OpError<HostPart>>();
    can_be_sent::<Enqueue<DevicePart>>();
    can_be_sent::<Enqueued<DevicePart>>();
    can_be_sent::<DeviceBuffer>();
    can_be_sent::<DevicePart>();
    can_be_sent::<ForeignMemory<Box<u8>>>();
    can_be_shared::<CudaEvent>();
    can_be_shared::<CuFileInfo>();
    can_be_sent::<HostBuffer>();
    can_be_sent::<HostPart>();
    can_be_shared::<Engine>();
    can_be_shared::<AsyncCuFile>();
    can_be_shared::<CancelHandle>();
    can_be_shared::<Error>();
    can_be_shared::<Receipt>();
    can_be_shared::<ShutdownReport>();
    // `select!` takes them by reference, without boxing.
    is_unpin::<Transfer<HostPart>>();
    is_unpin::<Request<()>>();
    is_unpin::<Staged<HostPart>>();
    is_unpin::<Written>();
    is_unpin::<Enqueue<DevicePart>>();
    is_unpin::<Enqueued<DevicePart>>();
    can_be_printed::<Transfer<HostPart>>();
    can_be_printed::<Request<AsyncCuFile>>();
    can_be_printed::<OpError<HostPart>>();
    can_be_printed::<Engine>();
    can_be_printed::<AsyncCuFile>();
};

assert_not_impl_any!(HostBuffer: Clone, Copy);
assert_not_impl_any!(HostPart: Clone, Copy);
assert_not_impl_any!(DeviceBuffer: Clone, Copy);
assert_not_impl_any!(DevicePart: Clone, Copy);
assert_not_impl_any!(Transfer<Vec<u8>>: Clone);
assert_not_impl_any!(AsyncCuFile: Clone);

#[test]
fn user_futures_around_ours_can_be_spawned() {
    let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
    can_be_spawned(&engine.shutdown());
    can_be_spawned(&Engine::builder().build());
    let program = async move {
        let file = AsyncCuFile::create(&engine, "/never-polled").await?;
        let done = file.write_all_at(vec![1; 10], 0).await?;
        file.sync_all().await?;
        file.close().await?;
        Ok::<_, Error>(done.bytes)
    };
    can_be_spawned(&program);
}
