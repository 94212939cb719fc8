"""The token families that the guard detects by their prefix, from publicly documented formats.

A token starts a word: no letter or digit precedes its prefix. Each body has a fixed or bounded
length, so that checking one occurrence costs a bounded number of steps.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_N = "[A-Za-z0-9]"
_W = "[A-Za-z0-9_-]"
_X = "[0-9a-f]"
_H = "[0-9A-Fa-f]"
_D = "[0-9]"
_ALNUM = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = "0123456789abcdefABCDEF"
_UUID = f"{_H}{{8}}-{_H}{{4}}-{_H}{{4}}-{_H}{{4}}-{_H}{{12}}"
_END = "(?![A-Za-z0-9])"
_MIXED = "(?=[A-Za-z_-]{0,40}+[0-9])"  # a digit within 40 characters, so not a slug of words
# The characters just read are checked by a lookbehind of fixed width, so that a text that is too
# short for a token fails at the first step.
_DIGIT_IN_20 = "(?<![A-Za-z]{20})"
_DIGIT_IN_24 = "(?<![A-Za-z]{24})"
_MIXED_IN_20 = "(?=[a-z0-9_-]{0,19}+[A-Z])(?=[A-Z0-9_-]{0,19}+[a-z])(?=[A-Za-z_-]{0,19}+[0-9])"
_NO_SLUG = "(?!" + "[A-Za-z0-9]{0,9}+[_-]" * 4 + ")"  # not four short words in a row
# A long run with a digit, a longer one without, or one with lower case, upper case and digits.
_OPAQUE = (
    rf"{_NO_SLUG}(?:(?:[a-z]{{2,8}}-)?+{_N}{{20}}(?:{_DIGIT_IN_20}|{_N}{{20}})"
    rf"|{_MIXED_IN_20}{_W}{{20}})"
)


class TokenFamily(NamedTuple):
    """A family of tokens: its description, its literal prefixes, and the pattern of the rest."""

    name: str
    description: str
    prefixes: tuple[str, ...]
    body: str

    @property
    def pattern(self) -> str:
        """The pattern of a whole token."""
        prefixes = "|".join(map(re.escape, self.prefixes))
        return f"(?<![A-Za-z0-9])(?:{prefixes}){self.body}"


def _family(name: str, description: str, prefixes: str, body: str) -> TokenFamily:
    return TokenFamily(name, description, tuple(prefixes.split()), body)


TOKEN_FAMILIES: tuple[TokenFamily, ...] = (
    # Clouds and hosting.
    _family(
        "aws_key_id", "AWS access key ids", "AKIA ASIA ABIA ACCA A3T", rf"[A-Z0-9]{{16,17}}{_END}"
    ),
    _family("alibaba_key_id", "Alibaba Cloud access key ids", "LTAI", f"{_N}{{16,20}}{_END}"),
    _family("clickhouse_key", "ClickHouse Cloud secrets", "4b1d", f"{_N}{{38}}{_END}"),
    _family("cloudflare_ca_key", "Cloudflare origin CA keys", "v1.0-", f"{_X}{{24}}-{_X}{{40}}"),
    _family("databricks_token", "Databricks tokens", "dapi dkea", f"{_X}{{32}}"),
    _family("digitalocean_oauth", "DigitalOcean OAuth tokens", "doo_v1_", f"{_H}{{64}}"),
    _family("digitalocean_token", "DigitalOcean personal tokens", "dop_v1_", f"{_H}{{64}}"),
    _family("digitalocean_refresh", "DigitalOcean refresh tokens", "dor_v1_", f"{_H}{{64}}"),
    _family("flyio_token", "Fly.io tokens", "fo1_", f"{_W}{{43}}"),
    _family("google_key", "Google API keys", "AIza", f"{_W}{{35}}(?!{_W})"),
    _family("google_oauth_secret", "Google OAuth client secrets", "GOCSPX-", f"{_W}{{20}}"),
    _family("google_oauth_token", "Google OAuth access tokens", "ya29.", f"{_W}{{20}}"),
    _family("heroku_key", "Heroku API keys", "HRKU-", f"{_W}{{50}}"),
    _family("netlify_token", "Netlify tokens", "nfp_ nfc_ nfo_ nfu_ nfb_", f"{_N}{{36}}"),
    _family("openshift_token", "OpenShift user tokens", "sha256~", f"{_W}{{43}}"),
    _family("planetscale_oauth", "PlanetScale OAuth tokens", "pscale_oauth_", r"[\w.-]{32}"),
    _family("planetscale_password", "PlanetScale passwords", "pscale_pw_", r"[\w.-]{32}"),
    _family("planetscale_token", "PlanetScale tokens", "pscale_tkn_", r"[\w.-]{32}"),
    _family("neon_key", "Neon API keys", "napi_", f"{_N}{{48}}"),
    _family("scalingo_token", "Scalingo tokens", "tk-us-", f"{_W}{{48}}"),
    _family("supabase_token", "Supabase tokens", "sbp_", f"(?:oauth_|v0_)?{_X}{{40}}"),
    _family("supabase_key", "Supabase secret keys", "sb_secret_", f"{_W}{{22}}"),
    _family("tailscale_key", "Tailscale keys", "tskey-", rf"[a-z]{{2,10}}-{_N}{{8,24}}-{_N}{{16}}"),
    _family("yandex_iam_token", "Yandex IAM tokens", "t1.", rf"{_W}{{4,400}}\.{_W}{{86}}"),
    _family("yandex_key", "Yandex API keys", "AQVN", f"{_W}{{35,38}}"),
    _family("yandex_key_id", "Yandex access key ids", "YCA", f"{_W}{{37}}(?!{_W})"),
    _family(
        "bedrock_session_key",
        "short-lived Amazon Bedrock keys",
        "bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t",
        f"{_N}{{8}}",
    ),
    # Infrastructure and operations.
    _family(
        "age_key", "age secret keys", "AGE-SECRET-KEY-1", "[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"
    ),
    _family("dynatrace_token", "Dynatrace tokens", "dt0c01. dt0s16.", rf"{_N}{{24}}\.{_N}{{64}}"),
    _family(
        "defined_networking_key", "Defined Networking tokens", "dnkey-", f"{_W}{{26}}-{_W}{{52}}"
    ),
    _family(
        "doppler_token",
        "Doppler tokens",
        "dp.",
        rf"(?:[cps]t|sa|scim|audit)\.(?:{_N}{{40}}|[a-z0-9_-]{{2,35}}+\.{_N}{{40}})",
    ),
    _family("grafana_token", "Grafana service account tokens", "glsa_", f"{_N}{{32}}_{_H}{{8}}"),
    _family("grafana_key", "Grafana API keys", "eyJrIjoi", f"{_N}{{60}}"),
    _family(
        "harness_token",
        "Harness tokens",
        "pat. sat.",
        rf"{_W}{{22}}\.{_N}{{24}}\.{_N}{{20}}",
    ),
    _family("infracost_key", "Infracost keys", "ico-", f"{_N}{{32}}{_END}"),
    _family("infisical_token", "Infisical service tokens", "st.", rf"{_X}{{24}}\.{_X}{{32}}"),
    _family("launchdarkly_key", "LaunchDarkly SDK keys", "sdk-", f"{_UUID}{_END}"),
    _family("new_relic_browser", "New Relic browser keys", "NRJS-", f"{_H}{{19}}"),
    _family("new_relic_insert", "New Relic insert keys", "NRII-", f"{_W}{{32}}"),
    _family("new_relic_user", "New Relic user keys", "NRAK-", f"{_N}{{27}}"),
    _family("octopus_key", "Octopus Deploy keys", "API-", f"[A-Z0-9]{{26}}{_END}"),
    _family(
        "onepassword_key",
        "1Password secret keys",
        "A3-",
        r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}",
    ),
    _family("prefect_key", "Prefect keys", "pnu_ pnb_", f"{_N}{{36}}"),
    _family("pulumi_token", "Pulumi tokens", "pul-", f"{_X}{{40}}"),
    _family("sentry_user_token", "Sentry user tokens", "sntryu_", f"{_X}{{64}}"),
    _family("sonar_token", "SonarQube tokens", "squ_ sqp_ sqa_", f"{_W}{{40}}"),
    _family("vault_batch_token", "HashiCorp Vault batch tokens", "hvb.", f"{_W}{{60}}"),
    _family("vault_recovery_token", "HashiCorp Vault recovery tokens", "hvr.", f"{_W}{{24}}"),
    _family(
        "vault_service_token",
        "HashiCorp Vault service tokens",
        "hvs.",
        f"(?:{_N}{{24}}{_DIGIT_IN_24}|{_W}{{60}})",
    ),
    _family(
        "terraform_token",
        "Terraform Cloud tokens",
        "atlasv1.",
        rf"(?<={_N}{{14}}\.atlasv1\.){_W}{{60}}",
    ),
    _family(
        "vault_legacy_token",
        "HashiCorp Vault legacy tokens",
        "s.",
        rf"{_N}{{24}}{_DIGIT_IN_24}(?![A-Za-z0-9_.-])",
    ),
    # Code and packages.
    _family("artifactory_key", "JFrog Artifactory API keys", "AKCp", f"{_N}{{69}}"),
    _family("artifactory_reference", "JFrog reference tokens", "cmVmd", f"{_N}{{59}}{_END}"),
    _family("atlassian_token", "Atlassian API tokens", "ATATT3", f"{_W}{{60}}"),
    _family("atlassian_access_token", "Atlassian access tokens", "ATCTT3", f"{_W}{{60}}"),
    _family("bitbucket_password", "Bitbucket app passwords", "ATBB", f"{_N}{{32}}{_END}"),
    _family("buildkite_token", "Buildkite tokens", "bkua_ bkct_", f"{_X}{{40}}"),
    _family("circleci_token", "CircleCI tokens", "CCIPAT_ CCIPRJ_", f"{_N}{{22}}_{_X}{{40}}"),
    _family("clojars_token", "Clojars deploy tokens", "CLOJARS_ clojars_", f"{_N}{{60}}"),
    _family("crates_token", "Cargo registry tokens", "cio", f"{_N}{{32}}{_END}"),
    _family("docker_token", "Docker Hub tokens", "dckr_pat_ dckr_oat_", f"{_W}{{24}}"),
    _family("github_fine_grained", "GitHub fine-grained tokens", "github_pat_", r"\w{22}"),
    _family("github_oauth", "GitHub OAuth tokens", "gho_", f"{_N}{{36}}"),
    _family("github_refresh", "GitHub refresh tokens", "ghr_", f"{_N}{{36}}"),
    _family("github_server", "GitHub app server tokens", "ghs_", f"{_N}{{36}}"),
    _family("github_token", "GitHub personal tokens", "ghp_", f"{_N}{{36}}"),
    _family("github_user", "GitHub app user tokens", "ghu_", f"{_N}{{36}}"),
    _family("gitlab_agent", "GitLab Kubernetes agent tokens", "glagent-", f"{_W}{{50}}"),
    _family("gitlab_deploy", "GitLab deploy tokens", "gldt-", f"{_W}{{20}}"),
    _family("gitlab_feature_flag", "GitLab feature flag tokens", "glffct-", f"{_W}{{20}}"),
    _family("gitlab_feed", "GitLab feed tokens", "glft-", f"{_W}{{20}}"),
    _family("gitlab_incoming_mail", "GitLab incoming mail tokens", "glimt-", f"{_W}{{20}}"),
    _family("gitlab_job", "GitLab CI job tokens", "glcbt-", rf"{_N}{{1,5}}_{_W}{{20}}"),
    _family("gitlab_oauth_app", "GitLab OAuth application secrets", "gloas-", f"{_W}{{60}}"),
    _family("gitlab_personal", "GitLab personal tokens", "glpat-", f"{_W}{{20}}"),
    _family("gitlab_pipeline", "GitLab pipeline trigger tokens", "glptt-", f"{_H}{{40}}"),
    _family("gitlab_registration", "GitLab runner registration", "GR1348941", f"{_W}{{20}}"),
    _family("gitlab_runner", "GitLab runner tokens", "glrt-", f"{_W}{{20}}"),
    _family("gitlab_scim", "GitLab SCIM tokens", "glsoat-", f"{_W}{{20}}"),
    _family("npm_token", "npm tokens", "npm_", f"{_N}{{36}}"),
    _family("nuget_key", "NuGet API keys", "oy2", f"[a-z0-9]{{43}}{_END}"),
    _family("pypi_token", "PyPI upload tokens", "pypi-AgEIcHlwaS5vcmc", f"{_W}{{50}}"),
    _family(
        "pypi_test_token", "TestPyPI upload tokens", "pypi-AgENdGVzdC5weXBpLm9yZ", f"{_W}{{50}}"
    ),
    _family(
        "jwt",
        "JSON web tokens",
        " ".join("ey" + char for char in _ALNUM),
        rf"(?<![A-Za-z0-9_-].{{3}})(?:(?<=eyJ){_N}{{4}}iO{_W}{{6,512}}+\.{_W}{{8}}|{_W}{{16,512}}+\.ey{_W}{{15}})",
    ),
    _family("rubygems_key", "RubyGems keys", "rubygems_", f"{_X}{{48}}"),
    _family(
        "sourcegraph_token",
        "Sourcegraph tokens",
        "sgp_",
        f"(?:{_H}{{16}}(?:{_H}{{24}}|_{_H}{{40}})|local_{_H}{{40}})",
    ),
    _family("wakatime_key", "WakaTime keys", "waka_", _UUID),
    _family(
        "jwt_encoded",
        "JSON web tokens in base64",
        "ZXlKaGJHY2lPaU ZXlKMGVYQWlPaU ZXlKcmFXUWlPaU ZXlKbGJtTWlPaU",
        f"{_N}{{20}}",
    ),
    # Machine learning.
    _family("anthropic_admin_key", "Anthropic admin keys", "sk-ant-admin01-", f"{_W}{{80}}"),
    _family("anthropic_key", "Anthropic API keys", "sk-ant-api03-", f"{_W}{{80}}"),
    _family(
        "openai_project_key",
        "OpenAI project, service account and admin keys",
        "sk-proj- sk-svcacct- sk-admin-",
        f"{_W}{{40}}",
    ),
    _family("openrouter_key", "OpenRouter keys", "sk-or-v1-", f"{_X}{{64}}"),
    _family(
        "api_key",
        "other keys that begin with `sk-`",
        "sk-",
        _OPAQUE,
    ),
    _family("groq_key", "Groq keys", "gsk_", f"{_N}{{52}}"),
    _family(
        "huggingface_org_token", "Hugging Face organization tokens", "api_org_", "[A-Za-z]{34}"
    ),
    _family("huggingface_token", "Hugging Face tokens", "hf_", f"{_N}{{34}}"),
    _family("langsmith_key", "LangSmith keys", "lsv2_pt_ lsv2_sk_", f"{_X}{{32}}_{_X}{{10}}"),
    _family("perplexity_key", "Perplexity keys", "pplx-", f"{_N}{{40}}"),
    _family("pinecone_key", "Pinecone keys", "pcsk_", rf"{_N}{{5,6}}_{_N}{{50}}"),
    _family("replicate_token", "Replicate tokens", "r8_", f"{_N}{{37}}"),
    _family("xai_key", "xAI keys", "xai-", f"{_N}{{80}}"),
    # Payments and commerce.
    _family("duffel_token", "Duffel tokens", "duffel_test_ duffel_live_", f"{_W}{{40}}"),
    _family("easypost_key", "EasyPost keys", "EZAK", f"{_N}{{54}}"),
    _family("easypost_test_key", "EasyPost test keys", "EZTK", f"{_N}{{54}}"),
    _family("flutterwave_key", "Flutterwave secret keys", "FLWSECK-", f"{_X}{{32}}-X"),
    _family("flutterwave_public_key", "Flutterwave keys", "FLWPUBK_TEST-", f"{_N}{{32}}-X"),
    _family("flutterwave_test_key", "Flutterwave test keys", "FLWSECK_TEST-", f"{_N}{{12}}"),
    _family("lob_key", "Lob keys", "live_ test_", f"{_X}{{35}}{_END}"),
    _family("lob_public_key", "Lob publishable keys", "live_pub_ test_pub_", f"{_X}{{31}}{_END}"),
    _family(
        "plaid_token",
        "Plaid access tokens",
        "access-sandbox- access-development- access-production-",
        _UUID,
    ),
    _family("razorpay_key", "Razorpay keys", "rzp_live_ rzp_test_", f"{_N}{{14}}{_END}"),
    _family("shippo_token", "Shippo tokens", "shippo_live_ shippo_test_", f"{_H}{{40}}"),
    _family("shopify_app_token", "Shopify custom app tokens", "shpca_", f"{_H}{{32}}"),
    _family("shopify_private_token", "Shopify private app tokens", "shppa_", f"{_H}{{32}}"),
    _family("shopify_secret", "Shopify shared secrets", "shpss_", f"{_H}{{32}}"),
    _family("shopify_token", "Shopify access tokens", "shpat_", f"{_H}{{32}}"),
    _family("square_secret", "Square application secrets", "sq0csp-", f"{_W}{{40}}"),
    _family("square_token", "Square access tokens", "sq0atp- EAAA", rf"{_MIXED}{_W}{{22,60}}"),
    _family("stripe_key", "live Stripe keys", "sk_live_ rk_live_ sk_prod_ rk_prod_", f"{_N}{{10}}"),
    _family("stripe_test_key", "Stripe test keys", "sk_test_ rk_test_", f"{_N}{{10}}"),
    _family("stripe_webhook_secret", "Stripe webhook secrets", "whsec_", f"{_N}{{24}}"),
    # Messages and people.
    _family("adobe_secret", "Adobe client secrets", "p8e-", f"{_N}{{32}}"),
    _family("airtable_token", "Airtable tokens", "pat", rf"{_N}{{14}}\.{_X}{{64}}"),
    _family(
        "authress_key",
        "Authress service keys",
        "sc_ ext_ scauth_ authress_",
        rf"{_N}{{5,30}}\.{_N}{{4,6}}\.acc[_-][A-Za-z0-9-]{{10,32}}\.{_W}{{30}}",
    ),
    _family("contentful_token", "Contentful management tokens", "CFPAT-", f"{_W}{{40}}"),
    _family("dropbox_token", "Dropbox short-lived tokens", "sl.", f"{_W}{{120}}"),
    _family("facebook_page_token", "Facebook page tokens", "EAAM EAAC EAAB", f"{_N}{{90}}"),
    _family("figma_token", "Figma tokens", "figd_ figu_", f"{_W}{{38}}"),
    _family("frameio_token", "Frame.io tokens", "fio-u-", f"{_W}{{60}}"),
    _family("hubspot_token", "HubSpot tokens", "pat-na1- pat-na2- pat-eu1-", _UUID),
    _family("intra42_secret", "42 intranet secrets", "s-s4t2ud- s-s4t2af-", f"{_X}{{64}}"),
    _family("linear_key", "Linear API keys", "lin_api_", f"{_N}{{40}}"),
    _family("linear_oauth", "Linear OAuth tokens", "lin_oauth_", f"{_H}{{64}}"),
    _family(
        "mailchimp_key",
        "Mailchimp keys",
        " ".join(f"us{digit}" for digit in range(1, 10)),
        r"(?<=[0-9a-f]{32}-us[0-9])(?<![0-9a-z][0-9a-f]{32}-us[0-9])",
    ),
    _family("mapbox_token", "Mapbox tokens", "pk. sk. tk.", rf"{_N}{{60,120}}\.{_W}{{20,24}}"),
    _family("maxmind_key", "MaxMind license keys", "mmk", f"(?<={_N}{{6}}_{_N}{{29}}_mmk){_END}"),
    _family("notion_token", "Notion tokens", "ntn_", f"{_D}{{11}}{_N}{{35}}"),
    _family("notion_secret", "Notion integration secrets", "secret_", f"{_N}{{43}}{_END}"),
    _family("postman_key", "Postman keys", "PMAK-", f"{_H}{{24}}-{_H}{{34}}"),
    _family("readme_key", "ReadMe keys", "rdme_", "[a-z0-9]{70}"),
    _family("resend_key", "Resend keys", "re_", rf"{_N}{{8}}_{_N}{{24}}{_END}"),
    _family("sendgrid_key", "SendGrid keys", "SG.", rf"(?:{_W}{{22}}\.{_W}{{43}}|[\w.-]{{66}})"),
    _family("brevo_key", "Brevo keys", "xkeysib- xsmtpsib-", f"{_X}{{64}}-{_N}{{16}}"),
    _family("settlemint_app_token", "SettleMint application tokens", "sm_aat_", f"{_N}{{16}}"),
    _family("settlemint_service_token", "SettleMint service tokens", "sm_sat_", f"{_N}{{16}}"),
    _family("settlemint_token", "SettleMint personal tokens", "sm_pat_", f"{_N}{{16}}"),
    _family("twilio_key", "Twilio API keys", " ".join("SK" + c for c in _HEX), f"{_H}{{31}}{_END}"),
    _family("twitter_bearer", "X (Twitter) bearer tokens", "A" * 22, f"(?!A){_N}{{30}}"),
    _family("typeform_token", "Typeform tokens", "tfp_", r"[\w.-]{59}"),
)
