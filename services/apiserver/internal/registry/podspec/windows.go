package podspec

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The limits of Windows options.
const (
	maxCredentialSpecKiB = 64
	maxUserDomain        = 256
	maxUserName          = 104
)

func validateWindowsOptions(o *corev1.WindowsSecurityContextOptions, path *field.Path) field.ErrorList {
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if o.GMSACredentialSpecName != nil {
		errs = append(errs, invalid(path.Child("gmsaCredentialSpecName"), o.GMSACredentialSpecName, utilvalidation.IsDNS1123Subdomain(*o.GMSACredentialSpecName))...)
	}
	if o.GMSACredentialSpec != nil {
		at := path.Child("gmsaCredentialSpec")
		if n := len(*o.GMSACredentialSpec); n == 0 {
			errs = append(errs, field.Invalid(at, o.GMSACredentialSpec, "gmsaCredentialSpec cannot be an empty string"))
		} else if n > maxCredentialSpecKiB*1024 {
			errs = append(errs, field.Invalid(at, o.GMSACredentialSpec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", maxCredentialSpecKiB)))
		}
	}
	if o.RunAsUserName != nil {
		for _, msg := range windowsUser(*o.RunAsUserName) {
			errs = append(errs, field.Invalid(path.Child("runAsUserName"), o.RunAsUserName, msg))
		}
	}
	return errs
}

// windowsUser checks a user with an optional domain, DOMAIN\USER.
func windowsUser(name string) []string {
	switch {
	case name == "":
		return []string{"runAsUserName cannot be an empty string"}
	case regexp.MustCompile(`[[:cntrl:]]`).MatchString(name):
		return []string{"runAsUserName cannot contain control characters"}
	case strings.Count(name, `\`) > 1:
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	domain, user, qualified := strings.Cut(name, `\`)
	if !qualified {
		domain, user = "", name
	}
	var msgs []string
	if len(domain) >= maxUserDomain {
		msgs = append(msgs, fmt.Sprintf("runAsUserName's Domain length must be under %d characters", maxUserDomain))
	}
	if qualified && !windowsDomain(domain) {
		msgs = append(msgs, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		msgs = append(msgs, "runAsUserName's User cannot be empty")
	} else if len(user) > maxUserName {
		msgs = append(msgs, fmt.Sprintf("runAsUserName's User length must not be longer than %d characters", maxUserName))
	}
	if user != "" && strings.Trim(user, ". ") == "" {
		msgs = append(msgs, "runAsUserName's User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		msgs = append(msgs, `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return msgs
}

func windowsDomain(domain string) bool {
	const label = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
	return regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`).MatchString(domain) ||
		regexp.MustCompile(`^`+label+`(?:\.`+label+`)*$`).MatchString(domain)
}
