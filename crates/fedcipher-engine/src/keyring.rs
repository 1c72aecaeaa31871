//! The keys that an engine holds, by device and epoch. They cannot be read out; they are only dropped.

use crate::compute::compute;
use crate::{Error, Result};
use fedcipher_core::committee::Member;
use fedcipher_core::keys::ClientKey;
use fedcipher_core::protocol::{Decryptor, Encryptor};
use fedcipher_core::rlwe::accelerator::Accelerators;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::{ClientId, Epoch, ledger, registry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The devices that a caller may use.
#[derive(Debug, Clone)]
pub enum Devices {
    All,
    Named(BTreeSet<String>),
}

impl Devices {
    fn contain(&self, name: &str) -> bool {
        match self {
            Devices::All => true,
            Devices::Named(names) => names.contains(name),
        }
    }
}

/// The name of a device that is served here and that the caller may use. [`Keyring::device`] makes it after its check.
#[derive(Debug, Clone)]
pub struct Granted(String);

impl Granted {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The keys of one device in one epoch.
pub struct DeviceKeys {
    pub epoch: Epoch,
    pub client: ClientId,
    key_id: [u8; 16],
    pub spec: Arc<str>,
    /// The objects for the key's roles.
    encryptor: Option<Arc<Mutex<Encryptor>>>,
    decryptor: Option<Decryptor>,
    member: Option<Box<dyn Member>>,
}

impl DeviceKeys {
    fn new(spec: Arc<str>, scheme: &dyn Scheme, key: &ClientKey, state: &Path) -> Result<Self> {
        let roles = scheme.roles(key)?;
        Ok(DeviceKeys {
            epoch: key.tag.epoch,
            client: key.client,
            key_id: key.tag.key_id,
            spec,
            encryptor: roles
                .client
                .then(|| scheme.encryptor(key, Some(state)))
                .transpose()?
                .map(Mutex::new)
                .map(Arc::new),
            decryptor: roles.reader.then(|| scheme.decryptor(key, Some(state))).transpose()?,
            member: roles.member.then(|| scheme.require_committee()?.member(key, Some(state))).transpose()?,
        })
    }

    /// Locks the encryptor. Lock it before work is handed to rayon, never inside: a rayon thread that waits for its
    /// share of an update may run other work, and would deadlock on its own lock.
    pub async fn encryptor(&self) -> Result<OwnedMutexGuard<Encryptor>> {
        let encryptor = self.encryptor.as_ref().ok_or_else(|| self.lacks("client, so it sends no updates"))?;
        Ok(Arc::clone(encryptor).lock_owned().await)
    }

    /// Whether a stream holds the encryptor, which outlives these keys.
    fn encrypts(&self) -> bool {
        self.encryptor.as_ref().is_some_and(|encryptor| Arc::strong_count(encryptor) > 1)
    }

    pub fn decryptor(&self) -> Result<&Decryptor> {
        self.decryptor.as_ref().ok_or_else(|| self.lacks("reader, so it opens no aggregates"))
    }

    pub fn member(&self) -> Result<&dyn Member> {
        self.member.as_deref().ok_or_else(|| self.lacks("member of a committee"))
    }

    /// Runs clean-up that no caller waits for. An error goes to the log.
    fn tidy(&self, device: &str, work: impl FnOnce(&dyn Member) -> fedcipher_core::Result<()>) {
        if let Some(Err(error)) = self.member.as_deref().map(work) {
            tracing::warn!(device, epoch = self.epoch.get(), class = error.class(), "prekeys stay undeleted: {error}");
        }
    }

    fn lacks(&self, role: &str) -> Error {
        Error::Access(format!("party {} of epoch {} is not a {role}", self.client, self.epoch))
    }
}

#[derive(Default)]
struct Device {
    scheme: Option<(Arc<str>, Arc<dyn Scheme>)>,
    parties: BTreeMap<Epoch, Arc<DeviceKeys>>,
}

/// Deletes expired prekeys now and after each `every`, even if the members receive no calls.
pub async fn expire(keyring: Arc<Keyring>, every: Duration) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let keyring = Arc::clone(&keyring);
        let look = compute(move || {
            keyring.expire();
            Ok(())
        });
        if let Err(error) = look.await {
            tracing::warn!(class = error.class(), "prekeys stay undeleted: {error}");
        }
    }
}

/// All devices of one engine.
pub struct Keyring {
    state: PathBuf,
    /// Accelerators for the arithmetic of `bfv`, if any.
    accelerators: Option<Arc<dyn Accelerators>>,
    devices: RwLock<BTreeMap<String, Device>>,
    /// Keys whose epochs have ended, but whose streams may still be active.
    ended: std::sync::Mutex<Vec<Arc<DeviceKeys>>>,
}

impl Keyring {
    /// `state` is the folder of the nonce ledgers.
    #[must_use]
    pub fn new(state: &Path, devices: &[String]) -> Self {
        let devices = devices.iter().map(|name| (name.clone(), Device::default())).collect();
        Keyring {
            state: state.to_owned(),
            accelerators: None,
            devices: RwLock::new(devices),
            ended: std::sync::Mutex::default(),
        }
    }

    /// Uses accelerators for the arithmetic of `bfv`.
    #[must_use]
    pub fn with_accelerators(self, accelerators: Option<Arc<dyn Accelerators>>) -> Self {
        Keyring { accelerators, ..self }
    }

    /// The folder of the nonce ledgers.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Inserts the key of one epoch. The scheme of a device cannot change.
    pub fn insert(&self, device: &str, spec: &str, key: &ClientKey) -> Result<()> {
        let known = self.read().get(device).and_then(|d| d.scheme.clone());
        let (spec, scheme) = match known {
            Some((text, scheme)) if *text == *spec => (text, scheme),
            Some(_) => {
                return Err(Error::Configuration(format!(
                    "the authority changed the scheme of device {device}; restart the engine to follow"
                )));
            }
            None => (Arc::from(spec), registry::make_on(spec, self.accelerators.clone())?),
        };
        // The key is unused: a file's marker ensures this, or the authority, which issues a device's key of an epoch to
        // one state folder only.
        ledger::register(key, &self.state)?;
        let device_keys = Arc::new(DeviceKeys::new(Arc::clone(&spec), scheme.as_ref(), key, &self.state)?);
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let slot = devices.entry(device.to_owned()).or_default();
        slot.scheme = Some((spec, scheme));
        slot.parties.insert(device_keys.epoch, device_keys);
        Ok(())
    }

    /// Removes all epochs of `device` that are not `usable`. Active streams end under their own epoch. The prekeys of
    /// these epochs are not needed any more, so they are deleted at once.
    pub fn keep(&self, device: &str, usable: &[Epoch]) {
        let ended = self.end(device, usable);
        ended.iter().for_each(|device_keys| device_keys.tidy(device, |member| member.forget()));
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).extend(ended);
        self.retire();
    }

    /// Deletes the ledgers of ended epochs without active streams.
    fn retire(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|device_keys| {
            Arc::strong_count(device_keys) > 1 || device_keys.encrypts() || !self.is_retired(device_keys)
        });
    }

    /// Deletes ledgers that no caller waits for. An error goes to the log, and the next call tries again.
    fn is_retired(&self, device_keys: &DeviceKeys) -> bool {
        let gone = ledger::retire(&device_keys.key_id, device_keys.client, &self.state);
        if let Err(error) = &gone {
            tracing::warn!(epoch = device_keys.epoch.get(), "ledgers of an ended epoch stay undeleted: {error}");
        }
        gone.is_ok()
    }

    /// Removes and returns the keys of `device` whose epochs are not `usable`.
    fn end(&self, device: &str, usable: &[Epoch]) -> Vec<Arc<DeviceKeys>> {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = devices.get_mut(device) else { return Vec::new() };
        let ended: Vec<Epoch> = device.parties.keys().copied().filter(|epoch| !usable.contains(epoch)).collect();
        ended.iter().filter_map(|epoch| device.parties.remove(epoch)).collect()
    }

    /// Deletes expired prekeys of all devices in all epochs.
    pub fn expire(&self) {
        let names: Vec<String> = self.read().keys().cloned().collect();
        for name in names {
            self.all_device_keys(&name)
                .iter()
                .for_each(|device_keys| device_keys.tidy(&name, |member| member.expire()));
        }
        self.retire();
    }

    /// Epochs held for `device`, the newest last.
    #[must_use]
    pub fn epochs(&self, device: &str) -> Vec<Epoch> {
        self.read().get(device).map(|d| d.parties.keys().copied().collect()).unwrap_or_default()
    }

    /// The device's keys in each epoch held.
    #[must_use]
    pub fn all_device_keys(&self, device: &str) -> Vec<Arc<DeviceKeys>> {
        self.read().get(device).map(|d| d.parties.values().cloned().collect()).unwrap_or_default()
    }

    /// The closed epochs of `device`: their keys open nothing after an attempted forgery.
    #[must_use]
    pub fn closed(&self, device: &str) -> Vec<Epoch> {
        let closed = |device_keys: &Arc<DeviceKeys>| {
            let open = device_keys.decryptor.as_ref().map(Decryptor::check_open);
            matches!(open, Some(Err(fedcipher_core::Error::Closed))).then_some(device_keys.epoch)
        };
        self.all_device_keys(device).iter().filter_map(closed).collect()
    }

    /// The keys of a device in `epoch`, or in the newest epoch.
    pub fn device_keys(&self, device: &Granted, epoch: Option<Epoch>) -> Result<Arc<DeviceKeys>> {
        let (devices, name) = (self.read(), device.name());
        let parties = devices.get(name).map(|d| &d.parties);
        let newest =
            parties.and_then(|p| p.last_key_value()).map(|(epoch, device_keys)| (*epoch, Arc::clone(device_keys)));
        let Some((last, newest)) = newest else {
            return Err(Error::Access(format!("device {name} has no key yet; see that the authority serves it")));
        };
        match epoch {
            None => Ok(newest),
            Some(epoch) => parties
                .and_then(|p| p.get(&epoch))
                .cloned()
                .ok_or(Error::Core(fedcipher_core::Error::Epoch { found: epoch, expected: last })),
        }
    }

    /// The device that a caller asks for, among the `allowed` ones. An empty name stands for the only allowed device.
    /// The error is the same for a device of other hosts and for an unknown device.
    pub fn device(&self, allowed: &Devices, asked: &str) -> Result<Granted> {
        let devices = self.read();
        let own: Vec<&String> = devices.keys().filter(|name| allowed.contain(name)).collect();
        let meant = match own.as_slice() {
            [only] if asked.is_empty() => Some(*only),
            all => all.iter().copied().find(|name| *name == asked),
        };
        meant.cloned().map(Granted).ok_or_else(|| {
            let names: Vec<&str> = own.iter().map(|name| name.as_str()).collect();
            Error::UnknownDevice { own: if names.is_empty() { "none".to_owned() } else { names.join(", ") } }
        })
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Device>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner)
    }
}
