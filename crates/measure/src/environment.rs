//! What a figure was measured on, printed with it.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

/// Above this load average per processor the machine is busy with something else.
const LOAD_MAX_PER_CPU: f64 = 0.75;

/// Facts about the machine. What the system does not tell is `None`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Processors that the process may use.
    pub cpus: usize,
    /// What they are.
    pub cpu_model: Option<String>,
    /// Whether the processor says that it is virtual.
    pub virtual_machine: bool,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// The file system of the measured files.
    pub file_system: Option<String>,
    /// What it is mounted from.
    pub device: Option<String>,
    /// Mode of transparent huge pages.
    pub huge_pages: Option<String>,
    /// Frequency governor of the first processor.
    pub governor: Option<String>,
    /// Load average of the last minute, before the run.
    pub load: Option<f64>,
}

impl Environment {
    /// Of this machine, for files in `directory`.
    ///
    /// # Errors
    ///
    /// When `directory` is not there.
    pub fn of(directory: &Path) -> io::Result<Self> {
        let device = fs::metadata(directory)?.dev();
        let mount = read("/proc/self/mountinfo").and_then(|text| mount_of(&text, device));
        let (file_system, device) = mount.unzip();
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_field(&cpuinfo, "model name"),
            virtual_machine: cpu_field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory: read("/proc/meminfo").as_deref().and_then(memory_total),
            file_system,
            device,
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .as_deref()
                .and_then(chosen),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load: load(),
        })
    }

    /// Whether something else kept the machine busy before the run.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.load
            .is_some_and(|load| load > LOAD_MAX_PER_CPU * self.cpus as f64)
    }
}

/// Load average of the last minute.
#[must_use]
pub fn load() -> Option<f64> {
    read("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn cpu_field(cpuinfo: &str, name: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The word in brackets.
fn chosen(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    Some(mode.to_owned())
}

/// Type and source of the mount with that device number.
fn mount_of(mountinfo: &str, device: u64) -> Option<(String, String)> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        if mount.split(' ').nth(2)? != number {
            return None;
        }
        let mut words = source.split(' ');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    })
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        write!(
            f,
            "kernel {}, {} CPUs ({}{})",
            or_unknown(&self.kernel),
            self.cpus,
            or_unknown(&self.cpu_model),
            if self.virtual_machine {
                ", virtual machine"
            } else {
                ""
            },
        )?;
        if let Some(bytes) = self.memory {
            write!(f, ", {} GiB memory", bytes >> 30)?;
        }
        write!(
            f,
            "\n{} on {}, huge pages {}, governor {}",
            or_unknown(&self.file_system),
            or_unknown(&self.device),
            or_unknown(&self.huge_pages),
            or_unknown(&self.governor),
        )?;
        if let Some(load) = self.load {
            write!(f, ", load {load:.2}")?;
        }
        if self.is_busy() {
            f.write_str(" (BUSY: trust ratios only)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_by_its_device_number() {
        let text = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                    30 22 254:16 / /data rw - xfs /dev/vdb rw,noquota\n";
        let device = rustix::fs::makedev(254, 16);
        let expected = ("xfs".to_owned(), "/dev/vdb".to_owned());
        assert_eq!(mount_of(text, device), Some(expected));
        assert_eq!(mount_of(text, rustix::fs::makedev(9, 9)), None);
    }

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("always"), None);
        assert_eq!(memory_total("MemTotal:  2048 kB\n"), Some(2 << 20));
        let cpuinfo = "processor\t: 0\nmodel name\t: A: fast one\nflags\t\t: fpu hypervisor\n";
        assert_eq!(
            cpu_field(cpuinfo, "model name").as_deref(),
            Some("A: fast one")
        );
    }

    #[test]
    fn this_machine_has_a_kernel_a_file_system_and_no_unknown_load() {
        let here = Environment::of(&std::env::temp_dir()).unwrap();
        assert!(here.kernel.is_some() && here.file_system.is_some());
        assert!(here.cpus > 0 && here.load.is_some());
        assert!(here.to_string().contains("kernel"));
    }
}
