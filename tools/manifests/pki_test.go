package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki is an authority for the certificates of a cluster, in files.
type pki struct {
	dir, ca string
	own     *x509.Certificate
	private *ecdsa.PrivateKey
}

func newPKI(t *testing.T, dir string) *pki {
	t.Helper()
	p := &pki{dir: dir, ca: filepath.Join(dir, "ca.crt")}
	p.own = p.template("natkit test", "")
	p.own.IsCA, p.own.BasicConstraintsValid, p.own.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	p.private = p.newKey(t, "ca")
	p.sign(t, "ca", p.own, &p.private.PublicKey)
	return p
}

func (p *pki) cert(name string) string { return filepath.Join(p.dir, name+".crt") }
func (p *pki) key(name string) string  { return filepath.Join(p.dir, name+".key") }

// issue writes a key and a certificate that is good for both ends of a connection: the name is a user's, or of a server at
// 127.0.0.1.
func (p *pki) issue(t *testing.T, name, group string) (cert, key string) {
	t.Helper()
	private := p.newKey(t, name)
	p.sign(t, name, p.template(name, group), &private.PublicKey)
	return p.cert(name), p.key(name)
}

func (p *pki) template(name, group string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	if group != "" {
		c.Subject.Organization = []string{group}
	}
	return c
}

func (p *pki) newKey(t *testing.T, name string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, p.key(name), "EC PRIVATE KEY", der)
	return key
}

func (p *pki) sign(t *testing.T, name string, c *x509.Certificate, public *ecdsa.PublicKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, p.own, public, p.private)
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, p.cert(name), "CERTIFICATE", der)
}

func (p *pki) write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// config is TLS for those who trust the authority, with the certificate of a name or none.
func (p *pki) config(t *testing.T, name string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(p.ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	c := &tls.Config{RootCAs: pool, ClientCAs: pool}
	if name != "" {
		own, err := tls.LoadX509KeyPair(p.cert(name), p.key(name))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c
}

// client asks over connections with the certificate of a name, or none.
func (p *pki) client(t *testing.T, name string) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: p.config(t, name)}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
