//! How hosts prove who they are: TLS 1.3 with raw public keys (RFC 7250), Ed25519, without certificates.
//!
//! Whoever proves some key gets a connection. Whether it is the right one decides who has dialled or accepts, with [`key_of`]. No connection
//! resumes an earlier one: there the key would be remembered, not proven.
use quinn::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use quinn::rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use quinn::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key,
};
use quinn::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use quinn::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use quinn::rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use quinn::rustls::sign::CertifiedKey;
use quinn::rustls::version::TLS13;
use quinn::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// What stands before a private key in PKCS #8 (RFC 8410).
const PRIVATE_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// What stands before a public key in a SubjectPublicKeyInfo (RFC 8410).
const PUBLIC_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A host's key pair.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The public key.
    pub(crate) key: [u8; 32],
    pair: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
}

impl Identity {
    /// Returns the identity of a private key.
    pub(crate) fn new(secret: &[u8; 32]) -> Result<Identity, Error> {
        let pkcs8 = PrivatePkcs8KeyDer::from([&PRIVATE_HEAD[..], &secret[..]].concat());
        let signing = ring::sign::any_eddsa_type(&pkcs8)?;
        let public = signing.public_key().map(|public| public.to_vec());
        // TLS carries a raw key in a certificate's place
        let public = CertificateDer::from(public.ok_or(Error::NoCertificatesPresented)?);
        Ok(Identity {
            key: key_in(&public)?,
            pair: Arc::new(CertifiedKey::new(vec![public], signing)),
            provider: Arc::new(ring::default_provider()),
        })
    }

    /// Returns how to accept those who speak a protocol.
    pub(crate) fn server(&self, protocol: &[u8]) -> Result<ServerConfig, Error> {
        let own = AlwaysResolvesServerRawPublicKeys::new(self.pair.clone());
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(self.anybody())
            .with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Returns how to dial those who speak a protocol.
    pub(crate) fn client(&self, protocol: &[u8]) -> Result<ClientConfig, Error> {
        let own = AlwaysResolvesClientRawPublicKeys::new(self.pair.clone());
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.anybody())
            .with_client_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        // all hosts have the same name
        config.enable_sni = false;
        Ok(config)
    }

    fn anybody(&self) -> Arc<Anybody> {
        Arc::new(Anybody(self.provider.signature_verification_algorithms))
    }
}

/// Returns the key that the host at the other end has proven to have.
pub(crate) fn key_of(connection: &quinn::Connection) -> Option<[u8; 32]> {
    let identity = connection.peer_identity()?;
    let shown = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    key_in(shown.first()?).ok()
}

/// Reads a public key as TLS carries it.
fn key_in(shown: &CertificateDer<'_>) -> Result<[u8; 32], Error> {
    let key = shown.strip_prefix(&PUBLIC_HEAD);
    let key = key.and_then(|key| key.try_into().ok());
    key.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Accepts everybody who proves a key.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl Anybody {
    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(&shown[..]);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.0)
    }
}

/// Nobody speaks an older TLS to this, since QUIC has none.
const NO_OLDER_TLS: Error = Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        key_in(shown).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_OLDER_TLS)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Anybody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        key_in(shown).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(NO_OLDER_TLS)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
