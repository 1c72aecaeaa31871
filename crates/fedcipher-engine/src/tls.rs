//! A party's certificate, key and authority on disk, and what they are for TLS.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Files of a party's folder, as `fedcipher-authority enrol` writes them.
pub const AUTHORITY_FILE: &str = "authority.pem";
pub const CERTIFICATE_FILE: &str = "certificate.pem";
pub const KEY_FILE: &str = "key.pem";

/// A folder with `authority.pem`, `certificate.pem` and `key.pem`.
#[derive(Debug, Clone)]
pub struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Credentials { folder: folder.to_owned() }
    }

    fn read(&self, file: &str) -> Result<Vec<u8>> {
        let path = self.folder.join(file);
        std::fs::read(&path).map_err(|e| Error::file(&path, &e))
    }

    /// The party's own certificate, PEM.
    pub fn certificate(&self) -> Result<Vec<u8>> {
        self.read(CERTIFICATE_FILE)
    }

    fn identity(&self) -> Result<Identity> {
        Ok(Identity::from_pem(self.certificate()?, self.read(KEY_FILE)?))
    }

    /// For a client that shows its certificate; the server's must name `domain`.
    pub fn client(&self, domain: &str) -> Result<ClientTlsConfig> {
        let authority = Certificate::from_pem(self.read(AUTHORITY_FILE)?);
        Ok(ClientTlsConfig::new().ca_certificate(authority).identity(self.identity()?).domain_name(domain))
    }

    /// For a server that asks every client for a certificate of this authority.
    pub fn server(&self) -> Result<ServerTlsConfig> {
        let authority = Certificate::from_pem(self.read(AUTHORITY_FILE)?);
        Ok(ServerTlsConfig::new().identity(self.identity()?).client_ca_root(authority))
    }
}
