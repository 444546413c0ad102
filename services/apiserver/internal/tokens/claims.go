package tokens

import (
	"errors"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"k8s.io/apimachinery/pkg/types"
)

// Claims are what a service-account token says. The private part has upstream's
// form.
type Claims struct {
	jwt.RegisteredClaims
	Kubernetes Bound `json:"kubernetes.io"`
}

// Bound is the private claim kubernetes.io: the account, and what else must exist
// for the token to be good.
type Bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *Ref             `json:"node,omitempty"`
	Pod            *Ref             `json:"pod,omitempty"`
	Secret         *Ref             `json:"secret,omitempty"`
	ServiceAccount Ref              `json:"serviceaccount"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// Ref names an object in the account's namespace, or a node.
type Ref struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// UserPrefix begins the names of service accounts' users.
const UserPrefix = "system:serviceaccount:"

// Groups of service accounts' users.
const (
	AccountsGroup       = "system:serviceaccounts"
	AccountsGroupPrefix = AccountsGroup + ":"
)

// UserName is the user of a service account.
func UserName(namespace, name string) string { return UserPrefix + namespace + ":" + name }

// SplitUserName is UserName reversed; ok is false for other users.
func SplitUserName(user string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(user, UserPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}

var errClaims = errors.New("the token's claims are not a service account's")

// check says whether the claims are whole and agree with each other.
func (c *Claims) check() error {
	account := c.Kubernetes.ServiceAccount
	if account.Name == "" || account.UID == "" || c.Kubernetes.Namespace == "" ||
		c.Subject != UserName(c.Kubernetes.Namespace, account.Name) {
		return errClaims
	}
	return nil
}
