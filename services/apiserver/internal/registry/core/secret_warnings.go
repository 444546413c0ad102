package core

import "crypto/tls"

func warnOfKeyPair(cert, key []byte) []string {
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return []string{err.Error()}
	}
	return nil
}
