"""The commands of ``tenantry`` that run on the service's host. Distributions find each other's
commands by entry points of the group ``tenantry.commands``.
"""

from typing import Final

from tenantry_cli.command_group import Sections, group

_ADMIN: Final = """\
Operate a service: organizations, their keys, customers, contracts and events.

With TENANTRY_OPERATOR_TOKEN (the service's OPERATOR_TOKEN) and TENANTRY_BASE_URL the commands ask
the service over HTTP; with DATABASE_URL they work on its database, on the service's host, where no
server needs to run. If both are set, pass --over http or --over database. after-restore,
erase-person, explain-token, fetch-events, rebuild-tenants and replay-events work on the host only."""

COMMANDS: Final[Sections] = {
    "Use a service": {
        "events": (
            {
                "follow": (
                    "tenantry.cli.change_feed",
                    "For the operator: show the changes of all organizations as they come.",
                ),
            },
            "Show the ledger of provider events; follow changes of organizations.",
        ),
    },
    "Run a service": {
        "serve": ("tenantry.cli.serve", "Run the service."),
        "worker": ("tenantry.cli.serve", "Run the background jobs alone."),
        "migrate": ("tenantry.cli.database", "Bring the database's schema up to date."),
        "doctor": ("tenantry.cli.doctor.command", "Check each setting and connection."),
        "webhooks": group(
            "List, test and enable the endpoints that receive events; send events again.",
            "tenantry.cli.webhooks",
            list=("list_webhooks", "List the endpoints, and what waits for them."),
            test=("test_webhook", "Send a test message to an endpoint."),
            enable=("enable_webhook", "Enable an endpoint, and send it all that is held."),
            resend=("resend_webhook", "Send events to an endpoint again."),
        ),
        "admin": (
            {
                "after-restore": (
                    "tenantry.cli.after_restore:after_restore",
                    "Redo revocations in a restored database.",
                ),
                "create-key": ("tenantry.cli.api_keys:create_key", "Create an API key."),
                "create-tenant": ("tenantry.cli.tenants:create_tenant", "Create an organization."),
                "end-tenant": ("tenantry.cli.tenants:end_tenant", "End an organization."),
                "erase-person": (
                    "tenantry.cli.person_erasure:erase_person",
                    "Erase one person's ids and addresses.",
                ),
                "explain-tenant": (
                    "tenantry.cli.billing:explain_tenant",
                    "Show why an organization has its plan and status.",
                ),
                "explain-token": (
                    "tenantry.cli.token_explanation:explain_token",
                    "Explain why a bearer token is accepted or rejected.",
                ),
                "export-audit": (
                    "tenantry.cli.audit:export_audit",
                    "Print the audit trail of all organizations.",
                ),
                "export-tenant": (
                    "tenantry.cli.tenants:export_tenant",
                    "Print all data of an organization.",
                ),
                "fetch-events": (
                    "tenantry.cli.backfill:fetch_events",
                    "Fetch events from the provider, and process them anew.",
                ),
                "find": (
                    "tenantry.cli.tenants",
                    "Find an organization by customer, person or key.",
                ),
                "grant": (
                    "tenantry.cli.grants",
                    "Give an organization a plan, features or limits by contract.",
                ),
                "grants": ("tenantry.cli.grants", "List what an organization has by contract."),
                "import-keys": (
                    "tenantry.cli.key_import:import_keys",
                    "Import API keys of another system.",
                ),
                "imported-keys": (
                    "tenantry.cli.key_import:imported_keys",
                    "Show which imported API keys were used.",
                ),
                "link": ("tenantry.cli.customers", "Link a customer to an organization."),
                "list-parked-events": (
                    "tenantry.cli.customers:list_parked_events",
                    "List events that belong to no organization.",
                ),
                "list-tenants": (
                    "tenantry.cli.tenants:list_tenants",
                    "List organizations, with filters and search.",
                ),
                "move": ("tenantry.cli.customers", "Move a customer to another organization."),
                "rebuild-tenants": (
                    "tenantry.cli.replay:rebuild_tenants",
                    "Rebuild billing state from the events.",
                ),
                "replay-events": (
                    "tenantry.cli.replay:replay_events",
                    "Fold events again, and repair what differs.",
                ),
                "resume": (
                    "tenantry.cli.tenants",
                    "End the suspension of an organization.",
                ),
                "revoke-key": (
                    "tenantry.cli.api_keys:revoke_key",
                    "Revoke an API key of any organization.",
                ),
                "show-event-body": (
                    "tenantry.cli.billing:show_event_body",
                    "Print what the provider sent, byte for byte.",
                ),
                "show-tenant": ("tenantry.cli.tenants:show_tenant", "Show an organization."),
                "suspend": (
                    "tenantry.cli.tenants",
                    "Reject all credentials of an organization.",
                ),
                "unlink": ("tenantry.cli.customers", "Remove the link of a customer."),
                "usage": (
                    "tenantry.cli.tenant_usage:admin_usage",
                    "Show which organizations and keys send how many requests.",
                ),
                "verify-owner-address": (
                    "tenantry.cli.tenants:verify_owner_address",
                    "Record that an owner's address is verified.",
                ),
            },
            _ADMIN,
        ),
        "reconcile": (
            "tenantry.cli.reconcile",
            "Compare organizations with the payment provider, and repair them.",
        ),
        "backfill": ("tenantry.cli.backfill", "Fetch provider events that never arrived."),
    },
}
"""Commands by heading of the help. A group that the client has too gets these further commands."""
