//! A party's certificate, key and authority on disk, and what they are for TLS.

use crate::{Error, Result, files};
use std::path::{Path, PathBuf};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

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

    /// Refused here already when it is out of date: the other side's reason often gets lost in TLS.
    fn identity(&self) -> Result<Identity> {
        let certificate = self.certificate()?;
        let path = self.folder.join(CERTIFICATE_FILE);
        let (_, pem) = parse_x509_pem(&certificate).map_err(|e| Error::file(&path, &e))?;
        let validity = pem.parse_x509().map_err(|e| Error::file(&path, &e))?.validity().clone();
        if !validity.is_valid() {
            let (from, to, now) = (validity.not_before, validity.not_after, ASN1Time::now());
            let what = if now < from { "is not valid yet" } else { "has expired" };
            return Err(Error::Access(format!(
                "{} {what}: it holds from {from} to {to} and this clock says {now}; check the clocks, or enrol again",
                path.display()
            )));
        }
        Ok(Identity::from_pem(certificate, files::read_secret(&self.folder.join(KEY_FILE))?))
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
