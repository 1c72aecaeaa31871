//! What ends with a container: its own layer, its memory, and volumes that are made anew with it. A ledger that is lost
//! with them lets a round be encrypted twice, unless the key is lost too.

use crate::{Error, Result};
use std::env;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The variable that says that keys end with their ledgers: in a simulation, say.
pub const ALLOWED: &str = "FEDCIPHER_ALLOW_EPHEMERAL_STATE";

/// Set in every container of a Kubernetes pod.
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
const GROUPS: [&str; 4] = ["/docker", "/kubepods", "/libpod", "containerd"];
const RUNTIMES: [&str; 3] = ["docker", "podman", "oci"];
/// File systems that a container's own files are on.
const LAYERS: [&str; 3] = ["overlay", "aufs", "fuse.fuse-overlayfs"];
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Refuses a state folder that ends with the container that this process is in.
pub(crate) fn check_state(state: &Path) -> Result<()> {
    if env::var_os(ALLOWED).is_some_and(|value| value == "1") || !is_container() {
        return Ok(());
    }
    // Not there on other systems than Linux.
    let Ok(mounts) = read_to_string("/proc/self/mountinfo") else { return Ok(()) };
    let Some(what) = ephemeral(&mounts, &existing(state), in_kubernetes()) else { return Ok(()) };
    let reason = format!(
        "this is a container, and the state folder lies in {what}: it ends with the container, after which this key \
         would encrypt rounds a second time. Put it on a persistent volume (FEDCIPHER_STATE_DIR, or the engine's --state; \
         docs/how-to/deploy.md, Kubernetes), or leave the key to an engine. {ALLOWED}=1 is for keys that end with the container"
    );
    Err(Error::Ledger { path: state.display().to_string(), reason })
}

pub(crate) fn in_kubernetes() -> bool {
    env::var_os(KUBERNETES).is_some_and(|value| !value.is_empty())
}

fn is_container() -> bool {
    let named = |cgroup: &str| GROUPS.iter().any(|name| cgroup.contains(name));
    in_kubernetes()
        || MARKS.iter().any(|mark| Path::new(mark).exists())
        || env::var("container").is_ok_and(|value| RUNTIMES.contains(&value.as_str()))
        || ["/proc/self/cgroup", "/proc/1/cgroup"].iter().any(|at| read_to_string(at).is_ok_and(|text| named(&text)))
}

/// The part of `path` that is there, its links followed.
fn existing(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.ancestors().find_map(|part| part.canonicalize().ok()).unwrap_or(whole)
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// Of its file system, the folder that is mounted.
    root: &'a str,
    at: PathBuf,
    kind: &'a str,
    source: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (place, about) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut about = about.split(' ');
        let (root, at) = (place.next()?, PathBuf::from(place.next()?.replace("\\040", " ")));
        Some(Mount { root, at, kind: about.next()?, source: about.next()? })
    }

    /// What the mount is, if it ends with the container.
    fn ephemeral(&self, kubernetes: bool) -> Option<&'static str> {
        if MEMORY.contains(&self.kind) {
            return Some("memory (tmpfs)");
        }
        if self.root.contains("kubernetes.io~empty-dir") {
            return Some("an emptyDir");
        }
        if is_unnamed(self.root) {
            return Some("a volume without a name");
        }
        // A virtual machine made from an image has marks of a container, and a disk of its own.
        let disk =
            self.source.starts_with("/dev/") && !self.source.contains("docker") && self.root == "/" && !kubernetes;
        let own = LAYERS.contains(&self.kind) || self.at == Path::new("/") && !disk;
        own.then_some("the container's own layer")
    }
}

/// Whether this is a volume that a runtime has made for one container, named by 64 hexadecimal digits.
fn is_unnamed(root: &str) -> bool {
    let name = root.strip_suffix("/_data").and_then(|volume| volume.rsplit('/').next());
    name.is_some_and(|name| name.len() == 64 && name.bytes().all(|c| c.is_ascii_hexdigit()))
}

/// What `path` lies in, if that ends with the container.
fn ephemeral(mounts: &str, path: &Path, kubernetes: bool) -> Option<&'static str> {
    // Of two mounts at one place the later one is seen.
    let mounts = mounts.lines().filter_map(Mount::parse).filter(|mount| path.starts_with(&mount.at));
    mounts.max_by_key(|mount| mount.at.components().count())?.ephemeral(kubernetes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "\
500 400 0:52 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l
501 500 0:60 / /dev/shm rw - tmpfs shm rw,size=65536k
502 500 8:1 /var/lib/kubelet/pods/5e/volumes/kubernetes.io~empty-dir/cache /cache rw - ext4 /dev/sda1 rw
503 500 0:61 / /keys ro,relatime - tmpfs tmpfs rw,size=1g
504 500 8:32 / /state rw,relatime - ext4 /dev/sdc rw
505 500 8:1 /srv/state /host rw,relatime - ext4 /dev/sda1 rw
506 500 8:1 /var/lib/docker/volumes/engine/_data /named rw - ext4 /dev/sda1 rw
507 500 0:70 / /a\\040share rw - nfs4 10.0.0.1:/x rw
508 504 0:62 / /state/scratch rw - tmpfs tmpfs rw";

    #[test]
    fn what_ends_with_a_container_is_told_from_a_volume() {
        let unnamed =
            format!("\n600 500 8:1 /var/lib/docker/volumes/{}/_data /unnamed rw - ext4 /dev/sda1 rw", "0a".repeat(32));
        let pod = format!("{POD}{unnamed}");
        for (path, expected) in [
            ("/root/.local/state", Some("the container's own layer")),
            ("/statement", Some("the container's own layer")),
            ("/dev/shm/x", Some("memory (tmpfs)")),
            ("/state/scratch/x", Some("memory (tmpfs)")),
            ("/cache/state", Some("an emptyDir")),
            ("/unnamed", Some("a volume without a name")),
            ("/state", None),
            ("/state/fedcipher", None),
            ("/host", None),
            ("/named", None),
            ("/a share/x", None),
        ] {
            assert_eq!(ephemeral(&pod, Path::new(path), true), expected, "{path}");
            assert_eq!(ephemeral(&pod, Path::new(path), false), expected, "{path}");
        }
    }

    #[test]
    fn a_machine_with_a_disk_of_its_own_is_not_taken_for_a_container() {
        let own = Some("the container's own layer");
        for (line, kubernetes, expected) in [
            ("27 1 254:0 / / rw - ext4 /dev/vda rw", false, None),
            ("27 1 254:0 / / rw - ext4 /dev/vda rw", true, own),
            ("27 1 253:9 / / rw - ext4 /dev/mapper/docker-8:1-77-ab rw", false, own),
            ("27 1 0:30 /var/lib/docker/btrfs/subvolumes/ab / rw - btrfs /dev/sda1 rw", false, own),
            ("27 1 0:30 / / rw - zfs pool/ab rw", false, own),
        ] {
            assert_eq!(ephemeral(line, Path::new("/home/x"), kubernetes), expected, "{line}");
        }
        assert_eq!(ephemeral("no such line", Path::new("/"), true), None);
    }
}
