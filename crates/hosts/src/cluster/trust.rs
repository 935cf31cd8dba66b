//! Who is trusted: TLS between members, and how the certificate that another node shows is checked.
//!
//! A certificate says one thing: the authority has signed it for the member with this id. Whether that is still a member, and
//! at which address, is in the roster; so a removed member is refused at once, however long its certificate is valid. TLS
//! sessions are never resumed, because that would skip the check.

use super::{
    certificates,
    roster::{Member, Roster},
};
use parking_lot::RwLock;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{
        ResolvesClientCert, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    ring::default_provider().signature_verification_algorithms
}

/// What a node knows of its cluster's members, and its own certificate. Both may change while connections are open.
#[derive(Debug)]
pub struct Trust {
    ca: CertificateDer<'static>,
    roots: Arc<RootCertStore>,
    roster: RwLock<Roster>,
    own: RwLock<Arc<CertifiedKey>>,
    /// Until when newcomers with an invitation may connect, in seconds of Unix time.
    invites_until_unix_s: AtomicU64,
}

impl Trust {
    /// Creates the trust from the CA's certificate, this node's certificate and key (all PEM), and the members.
    pub fn new(ca: &str, certificate: &str, key: &str, roster: Roster) -> Result<Trust, String> {
        let ca = certificates::read(ca)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).map_err(|error| error.to_string())?;
        let own = certified(&ca, certificate, key)?;
        Ok(Trust {
            ca,
            roots: Arc::new(roots),
            roster: RwLock::new(roster),
            own: RwLock::new(own),
            invites_until_unix_s: AtomicU64::new(0),
        })
    }

    /// Returns the SHA-256 of the CA's certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        certificates::fingerprint(&self.ca)
    }

    /// Replaces this node's certificate and key.
    pub fn renew(&self, certificate: &str, key: &str) -> Result<(), String> {
        *self.own.write() = certified(&self.ca, certificate, key)?;
        Ok(())
    }

    /// Returns the members.
    pub fn roster(&self) -> Roster {
        self.roster.read().clone()
    }

    /// Takes a roster if the known one gives way to it; returns whether that was so.
    pub fn learn(&self, roster: Roster) -> bool {
        let mut known = self.roster.write();
        let newer = known.gives_way_to(&roster);
        if newer {
            *known = roster;
        }
        newer
    }

    /// Removes all members, because this node has left.
    pub fn forget_all(&self) {
        *self.roster.write() = Roster::default();
        self.invite_until(0);
    }

    /// Lets newcomers connect until then, to present an invitation.
    pub fn invite_until(&self, unix_s: u64) {
        self.invites_until_unix_s.store(unix_s, Relaxed);
    }

    /// Returns the member that a verified certificate belongs to; `None` if that is not a member (any more).
    pub fn member_of(&self, certificate: &CertificateDer<'_>) -> Option<Member> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let roster = self.roster.read();
        let mut members = roster.members.iter();
        members
            .find(|member| is_for(&parsed, &certificates::host_name(&member.id)))
            .cloned()
    }

    /// Whether a verified certificate is the authority's.
    pub fn is_authority(&self, certificate: &CertificateDer<'_>) -> bool {
        ParsedCertificate::try_from(certificate)
            .is_ok_and(|parsed| is_for(&parsed, certificates::AUTHORITY))
    }

    /// Returns the TLS configuration for asking members.
    pub fn client(self: &Arc<Self>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has TLS 1.3");
        let mut config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(MembersOnly(self.clone())))
            .with_client_cert_resolver(Arc::new(Own(self.clone())));
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }

    /// Returns the TLS configuration for answering members.
    pub fn server(self: &Arc<Self>) -> Result<Arc<ServerConfig>, String> {
        let chain = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), provider())
            .build()
            .map_err(|error| error.to_string())?;
        let verifier = Arc::new(Gate {
            chain,
            trust: self.clone(),
        });
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(Own(self.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn certified(
    ca: &CertificateDer<'static>,
    certificate: &str,
    key: &str,
) -> Result<Arc<CertifiedKey>, String> {
    let chain = vec![certificates::read(certificate)?, ca.clone()];
    let key = ring::sign::any_supported_type(&certificates::read_key(key)?)
        .map_err(|error| error.to_string())?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|error| error.to_string())?;
    Ok(Arc::new(certified))
}

fn is_for(certificate: &ParsedCertificate<'_>, name: &str) -> bool {
    ServerName::try_from(name).is_ok_and(|name| verify_server_name(certificate, &name).is_ok())
}

/// Provides this node's current certificate.
#[derive(Debug)]
struct Own(Arc<Trust>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.own.read().clone())
    }
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.own.read().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Returns the error for TLS 1.2, which is not offered.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken here".into()))
}

/// Checks servers: trusts only the member that the roster has at the requested address.
#[derive(Debug)]
struct MembersOnly(Arc<Trust>);

impl ServerCertVerifier for MembersOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let (roots, algorithms) = (&self.0.roots, algorithms().all);
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        let member = self.0.member_of(end_entity);
        let member = member.ok_or(Error::InvalidCertificate(CertificateError::Revoked))?;
        match server_name {
            ServerName::IpAddress(address)
                if std::net::IpAddr::from(*address) == member.address.ip() =>
            {
                Ok(ServerCertVerified::assertion())
            }
            _ => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

/// Checks clients: accepts members and, while there are invitations, clients without a certificate. What those may ask for is
/// decided for each request.
#[derive(Debug)]
struct Gate {
    chain: Arc<dyn ClientCertVerifier>,
    trust: Arc<Trust>,
}

impl ClientCertVerifier for Gate {
    fn client_auth_mandatory(&self) -> bool {
        floe_ground::time::unix_now() >= self.trust.invites_until_unix_s.load(Relaxed)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)?;
        match self.trust.member_of(end_entity) {
            Some(_) => Ok(verified),
            None => Err(Error::InvalidCertificate(CertificateError::Revoked)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Returns the TLS configuration of a node in no cluster, for addresses of former members: it trusts nobody.
pub(super) fn nobody() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3");
    let config = builder
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Arc::new(config)
}

/// Returns the TLS configuration of a newcomer with an invitation: it trusts only a server with a certificate for the
/// authority's name that the CA with this fingerprint has signed.
pub(super) fn stranger(fingerprint: [u8; 32]) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3");
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(fingerprint)))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Checks the authority by its CA's fingerprint.
#[derive(Debug)]
struct Pinned([u8; 32]);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut shown = intermediates.iter();
        let ca = shown.find(|ca| certificates::fingerprint(ca) == self.0);
        let ca = ca.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms().all)?;
        match is_for(&parsed, certificates::AUTHORITY) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certificates::{Subject, make_ca, make_key, sign};
    use std::time::Duration;

    const CLUSTER: &str = "00000000000000aa";

    fn roster(number: u64, ids: &[u8]) -> Roster {
        let member = |id: &u8| Member {
            id: format!("{id:016x}"),
            name: format!("host-{id}"),
            address: std::net::SocketAddr::from(([10, 0, 0, *id], 7071)),
        };
        Roster {
            number,
            members: ids.iter().map(member).collect(),
            ..Default::default()
        }
    }

    fn signed(ca_key: &str, request: &str, id: u8, authority: bool) -> Option<String> {
        let id = format!("{id:016x}");
        let subject = Subject {
            id: &id,
            name: "any",
            authority,
            lifetime: Duration::from_secs(60),
        };
        let signed = sign(ca_key, CLUSTER, request, &subject).unwrap()?;
        let (certificate, (from, to)) = signed;
        assert_eq!(to - from, 60);
        Some(certificate)
    }

    #[test]
    fn a_certificate_is_of_the_member_that_it_names_for_as_long_as_that_is_one() {
        let (ca, ca_key) = make_ca(CLUSTER).unwrap();
        let (key, request) = make_key().unwrap();
        let first = signed(&ca_key, &request, 1, true).unwrap();
        let node = key.clone() + &first;
        let trust = Trust::new(&ca, &node, &node, roster(1, &[1, 2])).unwrap();
        let second = signed(&ca_key, &request, 2, false).unwrap();
        let [first, second] = [first, second].map(|pem| certificates::read(&pem).unwrap());
        assert_eq!(trust.member_of(&first).unwrap().name, "host-1");
        assert_eq!(trust.member_of(&second).unwrap().name, "host-2");
        assert!(trust.is_authority(&first) && !trust.is_authority(&second));
        // a removed member is nobody, and an older roster does not bring it back
        assert!(trust.learn(roster(2, &[1])));
        assert!(trust.member_of(&second).is_none());
        assert!(!trust.learn(roster(1, &[1, 2])));
        assert!(trust.member_of(&second).is_none());
        trust.forget_all();
        assert!(trust.member_of(&first).is_none());
        // another key does not fit the certificate
        let (other, _) = make_key().unwrap();
        let unfit = other + &second_pem(&ca_key, &request);
        assert!(Trust::new(&ca, &unfit, &unfit, roster(1, &[1])).is_err());
    }

    fn second_pem(ca_key: &str, request: &str) -> String {
        signed(ca_key, request, 2, false).unwrap()
    }

    #[test]
    fn what_is_no_request_of_who_has_the_key_is_not_signed() {
        let (_, ca_key) = make_ca(CLUSTER).unwrap();
        let (_, request) = make_key().unwrap();
        assert!(signed(&ca_key, &request, 1, false).is_some());
        // a digit of the signature, which comes last
        let at = request.len() - 40;
        let mut forged = request.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        let long = request.repeat(100);
        for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----", &forged, &long] {
            assert!(signed(&ca_key, bad, 1, false).is_none());
        }
    }
}
