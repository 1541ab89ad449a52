//! How much memory a destination may take.

use std::fs;
use std::path::Path;

/// Bytes that could be allocated now without pushing anything out: the kernel's estimate, or what
/// a memory limit on this process leaves, if that is less.
///
/// `None` where the system does not say.
pub(crate) fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .as_deref()
        .and_then(mem_available);
    let group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| cgroup_available(&text, Path::new("/sys/fs/cgroup")));
    system.into_iter().chain(group).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least that any version 2 control group on the way to the root leaves.
///
/// A container is killed for passing its limit, however much memory the machine has.
fn cgroup_available(cgroup: &str, mount: &Path) -> Option<u64> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Path::new(own)
        .ancestors()
        .filter_map(|group| group_available(&mount.join(group)))
        .min()
}

fn group_available(group: &Path) -> Option<u64> {
    let number = |name| -> Option<u64> {
        fs::read_to_string(group.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    // "max" (no limit) is not a number.
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = stat
        .lines()
        .filter_map(|line| {
            line.strip_prefix("active_file ")
                .or_else(|| line.strip_prefix("inactive_file "))
        })
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_estimate() {
        let text = "MemTotal:       24 kB\nMemFree: 1 kB\nMemAvailable:   16384 kB\n";
        assert_eq!(mem_available(text), Some(16384 * 1024));
        assert_eq!(mem_available("MemTotal: 24 kB\n"), None);
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_counts_and_its_page_cache_is_free() {
        let mount = tempfile::tempdir().unwrap();
        let outer = mount.path().join("pod");
        let inner = outer.join("app");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(inner.join("memory.current"), "10\n").unwrap();
        fs::write(outer.join("memory.max"), "1000\n").unwrap();
        fs::write(outer.join("memory.current"), "700\n").unwrap();
        fs::write(
            outer.join("memory.stat"),
            "anon 200\nactive_file 100\ninactive_file 300\n",
        )
        .unwrap();

        assert_eq!(cgroup_available("0::/pod/app\n", mount.path()), Some(700));
        assert_eq!(cgroup_available("0::/\n", mount.path()), None);
        assert_eq!(cgroup_available("9:memory:/pod\n", mount.path()), None);
    }
}
