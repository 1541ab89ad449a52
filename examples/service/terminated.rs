//! Failure: what a supervisor does to end the service cuts an answer off, or never ends it.
//! Mechanism: connections that are served when the signal comes. Method: a client that has seen the
//! beginning of a long answer only, and reads on when the service listens no more. The service is this
//! program again, in a process of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

use crate::load::is_set;
use crate::{Args, serve};

const NAME: &str = "terminated::sigterm_answers_what_was_asked_and_ends_well";
const INNER: &str = "SERVICE_TEST_TERMINATED";
/// More than the kernel keeps for a client that does not read.
const BLOB: usize = 64 << 20;

#[test]
fn sigterm_answers_what_was_asked_and_ends_well() {
    if is_set(INNER) {
        return be_the_service();
    }
    let folder = tempfile::tempdir_in(xtask::place::target()).unwrap();
    let content = tokio_cufile_tests::pattern::bytes(0, BLOB);
    fs::write(folder.path().join("blob"), &content).unwrap();
    let mut service = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .current_dir(folder.path())
        .envs([(INNER, "1"), ("NO_COLOR", "1"), ("RUST_LOG", "info")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(service.stdout.take().unwrap());
    let address = address(&mut log);

    let mut client = TcpStream::connect(&address).unwrap();
    let ask = format!("GET /blobs/blob?length={BLOB}&bytes=true HTTP/1.1\r\nHost: blobs\r\n\r\n");
    client.write_all(ask.as_bytes()).unwrap();
    let mut answer = vec![0; 15];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, b"HTTP/1.1 200 OK");

    let pid = Pid::from_raw(i32::try_from(service.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    // There is nothing else to wait for; a test that waits in vain is ended by its runner.
    while TcpStream::connect(&address).is_ok() {
        std::thread::yield_now();
    }
    assert!(service.try_wait().unwrap().is_none(), "it did not wait");
    client.read_to_end(&mut answer).unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n");
    assert!(answer[body.unwrap() + 4..] == content);

    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    let status = service.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{rest}");
    let report = rest.lines().find(|line| line.contains(" ended "));
    assert!(report.unwrap().contains("quarantined: 0"), "{rest}");
}

fn be_the_service() {
    let (buffer, memory) = (BLOB.to_string(), (2 * BLOB).to_string());
    let args = ["service", ".", "--listen", "127.0.0.1:0"];
    let limits = ["--buffer", &buffer, "--memory", &memory];
    let args = Args::parse_from(args.into_iter().chain(limits));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve(args)).unwrap();
}

/// The one that the service says it listens at.
fn address(log: &mut impl BufRead) -> String {
    let mut lines = log.lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains(" serving "));
    let line = line.expect("it serves");
    let (_, address) = line.split_once("address=").unwrap();
    address.split(' ').next().unwrap().to_owned()
}
