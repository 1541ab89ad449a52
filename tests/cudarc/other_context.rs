//! A slice of a context that is not its device's primary one.
//!
//! Failure: the engine copies in one context to an address that is known in another. Mechanism:
//! cudarc makes contexts of both kinds, since 0.19. Method: a context that says it is one device's and
//! is another's, since the simulator has primary contexts only.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cudarc::driver::CudaContext;
use tokio_cufile::{CudaEvent, Engine, ErrorKind, LentSlice};
use tokio_cufile_tests::Sim;
use tokio_cufile_tests::bench::block_on;

#[test]
fn it_is_refused() {
    let Some(sim) = Sim::need() else {
        return;
    };
    let (device, other) = (sim.lease(), sim.lease());
    let context = |lease: u32| CudaContext::new(usize::try_from(lease).unwrap()).unwrap();
    let (primary, theirs) = (context(device.ordinal), context(other.ordinal));
    // SAFETY: the context lives, and is never destroyed: see below.
    let odd = unsafe {
        CudaContext::from_raw_context(primary.ordinal(), primary.cu_device(), theirs.cu_ctx())
    };
    let odd = odd.unwrap();
    let stream = odd.new_stream().unwrap();
    let slice = stream.alloc_zeros::<u8>(4096).unwrap();
    let engine = Engine::builder().num_threads(1).build_blocking().unwrap();
    let error = block_on(LentSlice::new(&engine, slice)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(error.device(), Some(device.ordinal));
    let error = block_on(CudaEvent::of_stream(&engine, &stream)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    #[expect(
        clippy::disallowed_methods,
        reason = "its drop would destroy a primary context"
    )]
    std::mem::forget(odd);
    drop((stream, engine));
    device.assert_all_gone();
    other.assert_all_gone();
}
