//! A file system of the jail's own: what is listed, to read; one folder to write; nothing else of the machine.

use crate::{Jail, Result, Step};
use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{fchdir, getgid, getuid, pivot_root, umask};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const WALL: &str = "files";

/// Folders that the jail has of its own, whole.
const OWN: [&str; 4] = ["/", "/dev", "/proc", "/tmp"];

const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

const DEVICE_LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// The paths of the new root, for the rules of Landlock.
pub struct Seen {
    pub to_read: Vec<PathBuf>,
    pub to_write: Vec<PathBuf>,
}

/// A copy of a part of the old root, which belongs nowhere yet.
struct Tree {
    path: PathBuf,
    mount: OwnedFd,
    folder: bool,
}

/// A path that is a link outside, or leads through one, and where it leads.
struct Link {
    path: PathBuf,
    target: PathBuf,
}

/// Moves this process into a new root. Every part is taken from the old root by descriptor before, so that no path of
/// the new root, or link in it, is looked up in the old one.
pub fn enter(jail: &Jail) -> Result<Seen> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step(WALL, || "mounts that stay in the jail".to_owned())?;
    let (work, work_links) = taken(std::slice::from_ref(&jail.work), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)?;
    let (read, mut links) = taken(&jail.read_only, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)?;
    links.extend(work_links);
    let devices: Vec<PathBuf> = DEVICES.iter().map(PathBuf::from).collect();
    let (devices, _) = taken(&devices, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)?;
    if let Some(inside) = read.iter().find(|tree| tree.path.starts_with(&work[0].path)) {
        return Err("the app could replace it").step(WALL, || format!("{} in its work", inside.path.display()));
    }
    let processes = file_system("proc", &[])?;
    change_root(&file_system("tmpfs", &[("mode", "755"), ("size", "1m")])?, &work[0].path)?;

    umask(Mode::from_raw_mode(0o022));
    folder_for("/proc", &processes)?;
    let size = jail.limits.memory.to_string();
    for path in ["/tmp", "/dev/shm"] {
        folder_for(path, &file_system("tmpfs", &[("mode", "1777"), ("size", &size)])?)?;
    }
    for tree in devices.iter().chain(&read).chain(&work) {
        attach(tree)?;
    }
    for (path, target) in DEVICE_LINKS {
        symlink(target, path).step(WALL, || path.to_owned())?;
    }
    for link in &links {
        link_to(link)?;
    }
    describe_the_user().step(WALL, || "/etc".to_owned())?;
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(WALL, || "the new root".to_owned())?;
    set_attributes(&root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0)
        .step(WALL, || "the new root, to read only".to_owned())?;
    Ok(Seen {
        to_read: read.into_iter().map(|tree| tree.path).chain(["/etc", "/dev", "/proc"].map(PathBuf::from)).collect(),
        to_write: work
            .into_iter()
            .map(|tree| tree.path)
            .chain(["/tmp", "/dev/shm"].map(PathBuf::from))
            .chain(DEVICES.map(PathBuf::from))
            .collect(),
    })
}

/// Copies of `paths` with these attributes, and the links among the paths.
fn taken(paths: &[PathBuf], attributes: u64) -> Result<(Vec<Tree>, Vec<Link>)> {
    let mut real = Vec::new();
    let mut links = Vec::new();
    for path in paths {
        let target = allowed(path)?;
        if target != *path {
            links.push(Link { path: path.clone(), target: target.clone() });
        }
        real.push(target);
    }
    // In this order a folder comes before what lies in it, which a copy of the folder has.
    real.sort();
    real.dedup_by(|later, kept| later.starts_with(kept));
    let trees = real.into_iter().map(|path| take(path, attributes)).collect::<Result<_>>()?;
    Ok((trees, links))
}

/// Where an absolute path leads, unless the jail has something of its own there.
fn allowed(path: &Path) -> Result<PathBuf> {
    let named = || path.display().to_string();
    if !path.is_absolute() {
        return Err("the path must be absolute").step(WALL, named);
    }
    let real = path.canonicalize().step(WALL, named)?;
    let own = OWN.iter().any(|own| real == Path::new(own));
    if own || (real.starts_with("/proc") || (real.starts_with("/dev") && !DEVICES.contains(&named().as_str()))) {
        return Err("the jail has its own").step(WALL, named);
    }
    Ok(real)
}

fn take(path: PathBuf, attributes: u64) -> Result<Tree> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let mount = open_tree(CWD, &path, flags).step(WALL, || path.display().to_string())?;
    set_attributes(&mount, attributes, libc::AT_RECURSIVE).step(WALL, || path.display().to_string())?;
    let folder = path.is_dir();
    Ok(Tree { path, mount, folder })
}

/// A new file system that belongs nowhere yet.
fn file_system(name: &str, options: &[(&str, &str)]) -> Result<OwnedFd> {
    let made = || {
        let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    made().step(WALL, || format!("a new {name}"))
}

/// Makes `root` this process's root. It needs a folder to lie on for a moment: any of the old root.
fn change_root(root: &OwnedFd, on: &Path) -> Result<()> {
    let changed = || {
        let old = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        move_mount(root, "", CWD, on, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        fchdir(root)?;
        pivot_root(".", ".")?;
        fchdir(&old)?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    };
    changed().step(WALL, || "a new root".to_owned())
}

fn folder_for(path: &str, mount: &OwnedFd) -> Result<()> {
    fs::create_dir_all(path).step(WALL, || path.to_owned())?;
    move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(WALL, || path.to_owned())
}

fn attach(tree: &Tree) -> Result<()> {
    let named = || tree.path.display().to_string();
    if !tree.path.exists() {
        make_place(tree).step(WALL, named)?;
    }
    move_mount(&tree.mount, "", CWD, &tree.path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).step(WALL, named)
}

fn make_place(tree: &Tree) -> io::Result<()> {
    if tree.folder {
        return fs::create_dir_all(&tree.path);
    }
    fs::create_dir_all(tree.path.parent().unwrap_or(Path::new("/")))?;
    fs::File::create(&tree.path).map(drop)
}

/// Repeats a link. One that lies in a folder of the jail is there already, as is one that leads through another.
fn link_to(link: &Link) -> Result<()> {
    let linked = || {
        if link.path.exists() {
            return Ok(());
        }
        fs::create_dir_all(link.path.parent().unwrap_or(Path::new("/")))?;
        symlink(&link.target, &link.path)
    };
    linked().step(WALL, || link.path.display().to_string())
}

/// Programs ask for their user's name. The machine's own list of users is not the app's to know.
fn describe_the_user() -> io::Result<()> {
    let seen = |own: u32| if own == 0 { 65534 } else { own };
    let (user, group) = (seen(getuid().as_raw()), seen(getgid().as_raw()));
    fs::create_dir_all("/etc")?;
    for (path, text) in [
        ("/etc/passwd", format!("app:x:{user}:{group}:app:/tmp:/bin/false\n")),
        ("/etc/group", format!("app:x:{group}:\n")),
        ("/etc/hosts", "127.0.0.1 localhost app\n".to_owned()),
    ] {
        if !Path::new(path).exists() {
            fs::write(path, text)?;
        }
    }
    Ok(())
}

const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Adds attributes to a mount, and with `AT_RECURSIVE` to those below it: a plain remount leaves those writable.
#[allow(unsafe_code)]
fn set_attributes(mount: &OwnedFd, set: u64, flags: libc::c_int) -> io::Result<()> {
    let attributes = MountAttributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the path is an empty string, and the structure is the kernel's `mount_attr`, whose size follows it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
